// Image files: which format it is, whether it fits, and how results are written.

import { FileError } from "./errors.js";
import { isJpeg, isWebp, readPicture } from "./picture.js";
import { isPng, readPng, writePng } from "./png.js";
import { isTiff, readTiff, writeTiff } from "./tiff.js";

/** Largest image that the page takes; with its results it has some 30 bytes for each pixel. */
export const MOST_PIXELS = 2 ** 26;

/** Longest side that canvases take everywhere. */
export const LONGEST_SIDE = 16384;

const MEGAPIXEL = 1e6;
const SUFFIXES = { png: ".png", tiff: ".tif" };

function checkSize(width, height) {
  if (width * height > MOST_PIXELS)
    throw new FileError(
      `it has ${width} × ${height} pixels, ${Math.round((width * height) / MEGAPIXEL)} megapixels; ` +
        `this page holds up to ${Math.floor(MOST_PIXELS / MEGAPIXEL)}. The command line has no limit`,
    );
  if (Math.max(width, height) > LONGEST_SIDE)
    throw new FileError(
      `it has ${width} × ${height} pixels, and this page holds up to ${LONGEST_SIDE} along each side. ` +
        "The command line has no limit",
    );
}

/**
 * Return the image in a file: `data` with `stride` values for each pixel, of which the first `samples`
 * are grey or RGB and one more would be transparency.
 */
export async function readImage(name, bytes) {
  let image;
  try {
    if (!bytes.length) throw new FileError("it is empty");
    if (isPng(bytes)) image = await readPng(bytes, checkSize);
    else if (isTiff(bytes)) image = await readTiff(bytes, checkSize);
    else if (isJpeg(bytes) || isWebp(bytes)) image = await readPicture(bytes, checkSize);
    else throw new FileError("it is neither PNG nor TIFF, JPEG or WebP");
  } catch (error) {
    if (error instanceof FileError) throw new FileError(`${name} cannot be read: ${error.message}.`);
    throw new FileError(`${name} cannot be read: it is damaged (${error.message}).`);
  }
  if (image.data instanceof Float32Array || image.data instanceof Float64Array) {
    const invalid = image.data.reduce((count, value) => count + (Number.isFinite(value) ? 0 : 1), 0);
    if (invalid)
      throw new FileError(
        `${name} cannot be denoised here: ${invalid} of its values are not finite. The command ` +
          "line leaves such pixels as they are.",
      );
  }
  return { ...image, name };
}

/** Name of the type of the values, as NumPy has it. */
export const typeName = (data) => data.constructor.name.replace("Array", "").toLowerCase();

/** Return values of single precision in the type of an image: integers are rounded and clipped. */
export function inTypeOf(image, values) {
  const { data, stride, samples } = image;
  const result = new data.constructor(data.length);
  const integer = !(data instanceof Float32Array || data instanceof Float64Array);
  const most = 2 ** (8 * data.BYTES_PER_ELEMENT) - 1;
  const pixels = data.length / stride;
  for (let n = 0; n < pixels; n += 1) {
    for (let s = 0; s < samples; s += 1) {
      const value = values[n * samples + s];
      result[n * stride + s] = integer ? roundedToEven(Math.min(Math.max(value, 0), most)) : value;
    }
    for (let s = samples; s < stride; s += 1) result[n * stride + s] = data[n * stride + s];
  }
  return result;
}

function roundedToEven(value) {
  const rounded = Math.round(value);
  return rounded - value === 0.5 && rounded % 2 ? rounded - 1 : rounded;
}

/** The format in which results of an image are written: without loss, with all bits. */
export const resultFormat = (image) => (image.format === "tiff" ? "tiff" : "png");

/** Return name and bytes of a file with the values in place of those of the image. */
export async function writeImage(image, values, suffix) {
  const result = { ...image, data: inTypeOf(image, values) };
  const format = resultFormat(image);
  const stem = image.name.replace(/\.[^.]*$/, "");
  const blob = format === "tiff" ? writeTiff(result) : await writePng(result);
  return { name: `${stem}-${suffix}${SUFFIXES[format]}`, blob };
}
