/*
 * Denoise the selected annotation of QuPath, or the whole image, with the command line of integrodiff.
 *
 * The region is exported as OME-TIFF in full resolution, with its channels and pixel size; the result is
 * written beside the project, or into the home folder where there is none. Run it from the script editor.
 * Needs `integrodiff` on the path, or its full name below.
 */
import qupath.lib.regions.RegionRequest
import static qupath.lib.scripting.QP.*

def program = 'integrodiff'
def options = []            // such as ['--noise', 'poisson', '--model', 'iad-deep']
def largest = 20000         // longest side in pixels; larger regions have to be selected in parts

def server = getCurrentServer()
def selected = getSelectedObject()
def region = selected == null ?
        RegionRequest.createInstance(server) :
        RegionRequest.createInstance(server.getPath(), 1.0, selected.getROI())
if (Math.max(region.getWidth(), region.getHeight()) > largest) {
    throw new IllegalArgumentException(
            "The region has ${region.getWidth()} x ${region.getHeight()} pixels; select one of at most ${largest} along each side.")
}

def folder = getProject() == null ?
        new File(System.getProperty('user.home')) :
        new File(getProject().getPath().getParent().toFile(), 'integrodiff')
folder.mkdirs()
def name = server.getMetadata().getName().replaceAll('[^A-Za-z0-9._-]', '_')
def source = File.createTempFile('integrodiff-', '.ome.tif')
source.delete()
def target = new File(folder, "${name}-${region.getX()}-${region.getY()}.ome.tif")
try {
    writeImageRegion(server, region, source.getAbsolutePath())
    def command = [program, 'denoise', source.getAbsolutePath(), target.getAbsolutePath(), '--overwrite'] + options
    def process = new ProcessBuilder(command.collect { it.toString() }).redirectErrorStream(true).start()
    process.inputStream.eachLine { println it }
    def code = process.waitFor()
    if (code != 0) {
        throw new IOException("integrodiff ended with exit code ${code}; its messages are above")
    }
    println "Written to ${target}"
} finally {
    source.delete()
}
