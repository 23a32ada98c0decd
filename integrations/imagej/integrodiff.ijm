// Denoise the current image of ImageJ or Fiji with the command line of integrodiff.
//
// Plugins > Macros > Run... starts it; Plugins > Macros > Install... adds it to the menu.
// The image is saved as TIFF in a temporary folder, with its axes and spacing, and the result is
// opened beside it. Needs `integrodiff` on the path, or its full name in the first field.

macro "Denoise (integrodiff)" {
    if (nImages == 0) exit("Open an image first.");

    Dialog.create("Denoise (integrodiff)");
    Dialog.addString("Program:", call("ij.Prefs.get", "integrodiff.program", "integrodiff"), 30);
    Dialog.addChoice("Model:", newArray("iad-plus", "iad-fast", "iad-deep", "iad", "eed", "pm"));
    Dialog.addChoice("Noise:", newArray("gaussian", "poisson", "poisson-gaussian", "rician"));
    Dialog.addString("Noise level (empty: estimate):", "");
    Dialog.addCheckbox("Slices one by one, not as a volume", false);
    Dialog.show();
    program = Dialog.getString();
    model = Dialog.getChoice();
    noise = Dialog.getChoice();
    sigma = Dialog.getString();
    slices = Dialog.getCheckbox();
    call("ij.Prefs.set", "integrodiff.program", program);

    title = getTitle();
    getMinAndMax(lowest, highest);
    // A folder of its own for each call, so that two calls do not meet.
    folder = getDirectory("temp") + "integrodiff-" + floor(random * 1e9) + File.separator;
    File.makeDirectory(folder);
    source = folder + "noisy.tif";
    target = folder + "clean.tif";
    run("Duplicate...", "title=[for integrodiff] duplicate");
    saveAs("Tiff", source);
    close();

    arguments = newArray(program, "denoise", source, target, "--model", model, "--noise", noise);
    if (sigma != "") arguments = Array.concat(arguments, newArray("--sigma", sigma));
    if (slices) arguments = Array.concat(arguments, newArray("--slices"));
    showStatus("integrodiff ...");
    printed = exec(arguments);

    // The output appears complete or not at all.
    if (File.exists(target)) {
        open(target);
        rename(title + ", denoised");
        setMinAndMax(lowest, highest);
        done = File.delete(target);
    }
    done = File.delete(source);
    done = File.delete(folder);
    print(printed);
    if (nImages == 0 || getTitle() != title + ", denoised")
        exit("integrodiff did not write a result:\n" + printed);
}
