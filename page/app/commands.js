// The command line and the Python code that give the same result.

import { resultFormat } from "../formats/files.js";

const SUFFIXES = { png: ".png", tiff: ".tif" };

/** What tifffile calls a sample after grey or RGB, by its number in the file. */
const EXTRA_SAMPLES = ["unspecified", "assocalpha", "unassalpha"];

const quoted = (name) => (/^[\w.+,@%/-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`);

/** A name that begins with a dash would be taken for an option. */
const asFile = (name) => quoted(name.startsWith("-") ? `./${name}` : name);

export function resultName(image) {
  return `${image.name.replace(/\.[^.]*$/, "")}-denoised${SUFFIXES[resultFormat(image)]}`;
}

export function commandFor(image, { model, defaultModel, sigma }) {
  if (image.bits === 1)
    return "# To the command line an image of one bit per pixel is a mask: save it with 8 bits first.";
  const options = ["--exact"];
  if (model !== defaultModel) options.unshift("--model", model);
  if (sigma !== null) options.unshift("--sigma", String(sigma));
  return `integrodiff denoise ${asFile(image.name)} ${asFile(resultName(image))} ${options.join(" ")}`;
}

/** Denoise an array; beside grey, transparency would be taken for a second channel. */
function ofArray({ stride, samples, separate }, options) {
  if (stride === 1) return [`clean = denoise(image, ${options})`];
  if (samples > 1) return [`clean = denoise(image, ${options}, channel_axis=${separate ? 0 : -1})`];
  const grey = separate ? "[0]" : "[..., 0]";
  return ["clean = image.copy()", `clean${grey} = denoise(image${grey}, ${options})`];
}

function withTifffile(image, source, target, options) {
  const { stride, samples, separate, extra, inverted } = image;
  const tags = [];
  if (samples > 1) tags.push('photometric="rgb"');
  else if (inverted) tags.push('photometric="miniswhite"');
  else if (stride > 1) tags.push('photometric="minisblack"');
  if (separate) tags.push('planarconfig="separate"');
  else if (stride === 2) tags.push('planarconfig="contig"');
  if (stride > samples) tags.push(`extrasamples=["${EXTRA_SAMPLES[extra]}"]`);
  return [
    "import tifffile",
    "from integrodiff import denoise",
    "",
    `image = tifffile.imread(${source})`,
    ...ofArray(image, options),
    `tifffile.imwrite(${[target, "clean", ...tags].join(", ")})`,
  ];
}

const withImagecodecs = (image, source, target, options) => [
  "import imagecodecs",
  "from integrodiff import denoise",
  "",
  `image = imagecodecs.imread(${source})`,
  ...ofArray(image, options),
  `imagecodecs.imwrite(${target}, clean)`,
];

/** Of a Pillow image `denoise` knows the colours: it expands palettes, and leaves transparency as it is. */
function withPillow(image, source, target, options) {
  let opened = `Image.open(${source})`;
  let modules = "Image";
  if (image.transparentColour) opened += '.convert("RGBA")';
  else if (image.bits === 1 && image.samples === 1) opened += '.convert("L")';
  else if (image.format === "jpeg") {
    // As the browser turns it.
    modules = "Image, ImageOps";
    opened = `ImageOps.exif_transpose(${opened})`;
  }
  return [
    `from PIL import ${modules}`,
    "from integrodiff import denoise",
    "",
    `image = ${opened}`,
    `clean = denoise(image, ${options})`,
    `clean.save(${target})`,
  ];
}

/** Whether Pillow would drop bits of a PNG file, or take another grey value for the transparent one. */
const isBeyondPillow = ({ data, stride, samples, transparentColour }) =>
  (data instanceof Uint16Array && stride > 1) || (samples === 1 && transparentColour);

export function pythonFor(image, { model, defaultModel, sigma }) {
  const [source, target] = [image.name, resultName(image)].map((name) => JSON.stringify(name));
  const options = ["exact=True"];
  if (model !== defaultModel) options.unshift(`model="${model}"`);
  if (sigma !== null) options.unshift(`sigma=${sigma}`);
  let write = withPillow;
  if (image.format === "tiff") write = withTifffile;
  else if (isBeyondPillow(image)) write = withImagecodecs;
  return write(image, source, target, options.join(", ")).join("\n");
}
