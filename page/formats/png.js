// PNG with 8 and 16 bits per sample, which a canvas would cut to 8. Fewer bits and palettes are read
// as 8 bits, and a transparent colour as alpha, as in src/integrodiff/io/formats/png.py.

import { FileError } from "./errors.js";
import { deflate, inflate } from "./streams.js";

const SIGNATURE = [137, 80, 78, 71, 13, 10, 26, 10];
const CHANNELS = { 0: 1, 2: 3, 3: 1, 4: 2, 6: 4 };
const DEPTHS = { 0: [1, 2, 4, 8, 16], 2: [8, 16], 3: [1, 2, 4, 8], 4: [8, 16], 6: [8, 16] };
// Chunks about colours and pixel sizes, which the result has in common with the image.
const KEPT = ["iCCP", "sRGB", "gAMA", "cHRM", "pHYs"];
const PASSES = [
  [0, 0, 8, 8],
  [4, 0, 8, 8],
  [0, 4, 4, 8],
  [2, 0, 4, 4],
  [0, 2, 2, 4],
  [1, 0, 2, 2],
  [0, 1, 1, 2],
];

export const isPng = (bytes) => SIGNATURE.every((byte, k) => bytes[k] === byte);

function* chunksOf(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 8; at + 12 <= bytes.length; ) {
    const length = view.getUint32(at);
    const name = String.fromCharCode(...bytes.subarray(at + 4, at + 8));
    if (at + 12 + length > bytes.length) break;
    yield { name, data: bytes.subarray(at + 8, at + 8 + length) };
    if (name === "IEND") return;
    at += 12 + length;
  }
  throw new FileError("it ends too early");
}

function unfilter(rows, width, height, bytesPerPixel, rowBytes, start) {
  let at = start;
  let above = new Uint8Array(rowBytes);
  for (let y = 0; y < height; y += 1) {
    const filter = rows[at];
    const row = rows.subarray(at + 1, at + 1 + rowBytes);
    for (let x = 0; x < rowBytes; x += 1) {
      const left = x >= bytesPerPixel ? row[x - bytesPerPixel] : 0;
      const up = above[x];
      const corner = x >= bytesPerPixel ? above[x - bytesPerPixel] : 0;
      let guess = 0;
      if (filter === 1) guess = left;
      else if (filter === 2) guess = up;
      else if (filter === 3) guess = (left + up) >> 1;
      else if (filter === 4) {
        const [a, b, c] = [
          Math.abs(up - corner),
          Math.abs(left - corner),
          Math.abs(left + up - 2 * corner),
        ];
        guess = a <= b && a <= c ? left : b <= c ? up : corner;
      } else if (filter !== 0) throw new FileError("its compressed data are damaged");
      row[x] = (row[x] + guess) & 255;
    }
    above = row;
    at += rowBytes + 1;
  }
  return at;
}

/** Return the values with alpha, which is zero where a pixel has the transparent colour. */
function withAlpha(data, channels, colour) {
  const found = new data.constructor((data.length / channels) * (channels + 1));
  const opaque = 2 ** (8 * data.BYTES_PER_ELEMENT) - 1;
  for (let n = 0, target = 0; n < data.length; n += channels, target += channels + 1) {
    let isTransparent = true;
    for (let c = 0; c < channels; c += 1) {
      found[target + c] = data[n + c];
      isTransparent &&= data[n + c] === colour[c];
    }
    found[target + channels] = isTransparent ? 0 : opaque;
  }
  return found;
}

/** Return the colours of a palette, with alpha if the file gives some. */
function colours(indices, palette, alphas) {
  const stride = alphas ? 4 : 3;
  const found = new Uint8Array(indices.length * stride);
  indices.forEach((index, n) => {
    for (let c = 0; c < 3; c += 1) found[stride * n + c] = palette[3 * index + c] ?? 0;
    if (alphas) found[stride * n + 3] = alphas[index] ?? 255;
  });
  return found;
}

export async function readPng(bytes, checkSize) {
  const chunks = [...chunksOf(bytes)];
  const header = chunks[0];
  if (header?.name !== "IHDR" || header.data.length !== 13) throw new FileError("it has no header");
  const view = new DataView(header.data.buffer, header.data.byteOffset, 13);
  const [width, height] = [view.getUint32(0), view.getUint32(4)];
  const [depth, type, , , interlaced] = header.data.subarray(8);
  if (!DEPTHS[type]?.includes(depth) || !width || !height || interlaced > 1)
    throw new FileError("its header is damaged");
  checkSize(width, height);
  const channels = CHANNELS[type];
  const parts = chunks.filter(({ name }) => name === "IDAT").map(({ data }) => data);
  const packed = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((at, part) => (packed.set(part, at), at + part.length), 0);
  const passes = interlaced ? PASSES : [[0, 0, 1, 1]];
  const sizes = passes.map(([x, y, dx, dy]) => [
    Math.max(Math.ceil((width - x) / dx), 0),
    Math.max(Math.ceil((height - y) / dy), 0),
  ]);
  const rowBytes = (columns) => Math.ceil((columns * channels * depth) / 8);
  const expected = sizes.reduce((sum, [w, h]) => sum + (w && h ? h * (rowBytes(w) + 1) : 0), 0);
  const rows = await inflate(packed, expected);
  const data = depth === 16 ? new Uint16Array(width * height * channels) : new Uint8Array(width * height * channels);
  // Grey values of fewer bits become those of 8, indices of a palette stay.
  const factor = depth < 8 && type === 0 ? 255 / (2 ** depth - 1) : 1;
  let at = 0;
  passes.forEach(([x0, y0, dx, dy], pass) => {
    const [w, h] = sizes[pass];
    if (!w || !h) return;
    const length = rowBytes(w);
    const end = unfilter(rows, w, h, Math.max((channels * depth) >> 3, 1), length, at);
    for (let y = 0; y < h; y += 1) {
      const row = at + y * (length + 1) + 1;
      for (let x = 0; x < w; x += 1) {
        const target = ((y0 + y * dy) * width + x0 + x * dx) * channels;
        for (let c = 0; c < channels; c += 1) {
          const n = x * channels + c;
          if (depth === 8) data[target + c] = rows[row + n];
          else if (depth === 16) data[target + c] = (rows[row + 2 * n] << 8) | rows[row + 2 * n + 1];
          else {
            const bit = n * depth;
            const value = (rows[row + (bit >> 3)] >> (8 - depth - (bit & 7))) & (2 ** depth - 1);
            data[target + c] = value * factor;
          }
        }
      }
    }
    at = end;
  });
  const kept = chunks.filter(({ name }) => KEPT.includes(name));
  const transparency = chunks.find(({ name }) => name === "tRNS")?.data;
  const image = { format: "png", width, height, bits: depth, kept };
  if (type === 3) {
    const palette = chunks.find(({ name }) => name === "PLTE")?.data;
    if (!palette) throw new FileError("its palette is missing");
    const stride = transparency ? 4 : 3;
    return { ...image, data: colours(data, palette, transparency), stride, samples: 3 };
  }
  const samples = channels > 2 ? 3 : 1;
  if (!transparency || channels > samples) return { ...image, data, stride: channels, samples };
  if (transparency.length < 2 * channels) throw new FileError("its transparent colour is damaged");
  const colour = Array.from(
    { length: channels },
    (_, c) => ((transparency[2 * c] << 8) | transparency[2 * c + 1]) * factor,
  );
  const expanded = withAlpha(data, channels, colour);
  return { ...image, data: expanded, stride: channels + 1, samples, transparentColour: true };
}

const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  let c = n;
  for (let k = 0; k < 8; k += 1) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  return c;
});

function chunk(name, data) {
  const found = new Uint8Array(data.length + 12);
  const view = new DataView(found.buffer);
  view.setUint32(0, data.length);
  for (let k = 0; k < 4; k += 1) found[4 + k] = name.charCodeAt(k);
  found.set(data, 8);
  let crc = 0xffffffff;
  for (let k = 4; k < data.length + 8; k += 1) crc = CRC[(crc ^ found[k]) & 255] ^ (crc >>> 8);
  view.setUint32(data.length + 8, (crc ^ 0xffffffff) >>> 0);
  return found;
}

/** Return the bytes of a PNG file with the bits of the data, 8 or 16. */
export async function writePng({ width, height, stride, data, kept = [] }) {
  const bytes = data.BYTES_PER_ELEMENT;
  const rowBytes = width * stride * bytes;
  const rows = new Uint8Array(height * (rowBytes + 1));
  for (let y = 0; y < height; y += 1) {
    const row = y * (rowBytes + 1);
    rows[row] = 1; // each pixel minus the one before
    let previous = new Array(stride * bytes).fill(0);
    for (let x = 0; x < width; x += 1) {
      const here = [];
      for (let c = 0; c < stride; c += 1) {
        const value = data[(y * width + x) * stride + c];
        if (bytes === 2) here.push(value >> 8);
        here.push(value & 255);
      }
      const target = row + 1 + x * stride * bytes;
      for (let k = 0; k < here.length; k += 1) rows[target + k] = here[k] - previous[k];
      previous = here;
    }
  }
  const header = new Uint8Array(13);
  const view = new DataView(header.buffer);
  view.setUint32(0, width);
  view.setUint32(4, height);
  header[8] = 8 * bytes;
  header[9] = { 1: 0, 2: 4, 3: 2, 4: 6 }[stride];
  return new Blob(
    [
      Uint8Array.from(SIGNATURE),
      chunk("IHDR", header),
      ...kept.map(({ name, data: about }) => chunk(name, about)),
      chunk("IDAT", await deflate(rows)),
      chunk("IEND", new Uint8Array(0)),
    ],
    { type: "image/png" },
  );
}
