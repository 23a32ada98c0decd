// JPEG and WebP, which the browser decodes itself. A canvas multiplies colours by transparency and
// rounds them, so that only opaque pictures come out of it as they are.

import { FileError } from "./errors.js";

export const isJpeg = (bytes) => bytes[0] === 0xff && bytes[1] === 0xd8;

export const isWebp = (bytes) =>
  String.fromCharCode(...bytes.subarray(0, 4), ...bytes.subarray(8, 12)) === "RIFFWEBP";

/** Return size and number of components of a JPEG file from its header, or null. */
function jpegHeader(bytes) {
  for (let at = 2; at + 9 < bytes.length; ) {
    if (bytes[at] !== 0xff) return null;
    const marker = bytes[at + 1];
    if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker))
      return {
        height: (bytes[at + 5] << 8) | bytes[at + 6],
        width: (bytes[at + 7] << 8) | bytes[at + 8],
        components: bytes[at + 9],
      };
    at += marker === 0xff ? 1 : 2 + ((bytes[at + 2] << 8) | bytes[at + 3]);
  }
  return null;
}

/** Decode by the browser, 8 bits per sample; pictures are turned as their orientation says. */
export async function readPicture(bytes, checkSize) {
  const jpeg = isJpeg(bytes);
  const header = jpeg ? jpegHeader(bytes) : null;
  if (jpeg && !header) throw new FileError("its header is damaged");
  if (header?.components === 4) throw new FileError("its colours are neither grey nor RGB");
  if (header) checkSize(header.width, header.height);
  let bitmap;
  try {
    bitmap = await createImageBitmap(new Blob([bytes]), {
      premultiplyAlpha: "none",
      colorSpaceConversion: "none",
    });
  } catch {
    throw new FileError("the browser cannot decode it; it may be damaged");
  }
  const { width, height } = bitmap;
  checkSize(width, height);
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const grey = header?.components === 1;
  const stride = grey ? 1 : 3;
  // In bands: a copy of all pixels at once could be too much beside the canvas.
  const rows = Math.max(1, Math.floor(2 ** 22 / width));
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  const pixels = [];
  for (let y = 0; y < height; y += rows) {
    const band = context.getImageData(0, y, width, Math.min(rows, height - y)).data;
    for (let k = 3; !jpeg && k < band.length; k += 4)
      if (band[k] < 255)
        throw new FileError(
          "it is transparent in places, and the browser does not give the colours there exactly; " +
            "save it as PNG, or take the command line",
        );
    pixels.push(band);
  }
  const data = new Uint8Array(width * height * stride);
  let n = 0;
  for (const band of pixels)
    for (let k = 0; k < band.length; k += 4)
      for (let c = 0; c < stride; c += 1, n += 1) data[n] = band[k + c];
  return { format: jpeg ? "jpeg" : "webp", width, height, stride, samples: stride, data };
}
