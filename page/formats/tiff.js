// TIFF with one page: 8 and 16 bits, and floating point of 32 and 64 bits; grey or RGB, with or
// without transparency; in strips or tiles; uncompressed, LZW, deflate or PackBits.

import { FileError } from "./errors.js";
import { inflate } from "./streams.js";

const SIZES = { 1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8 };
const COMPRESSIONS = {
  2: "CCITT",
  3: "CCITT",
  4: "CCITT",
  6: "JPEG",
  7: "JPEG",
  34712: "JPEG 2000",
  50000: "Zstandard",
  34925: "LZMA",
};
// Kinds of a sample after grey or RGB that is transparency: colours are multiplied by it, or not.
const TRANSPARENCY = [1, 2];
const GEO_KEYS = 34735;
// Resolution and its unit, which the result has in common with the image.
const KEPT = [282, 283, 296];
// Tags with a value for each strip or tile, and those with a few values; others are not looked at.
const LONG = new Set([273, 279, 324, 325]);
const SHORT = new Set([
  ...[254, 256, 257, 258, 259, 262, 277, 278, 284, 317, 322, 323, 338, 339, GEO_KEYS],
  ...KEPT,
]);
const MOST_BLOCKS = 1 << 22;
const MOST_VALUES = 16;

export const isTiff = (bytes) =>
  (bytes[0] === 0x49 && bytes[1] === 0x49 && (bytes[2] === 42 || bytes[2] === 43)) ||
  (bytes[0] === 0x4d && bytes[1] === 0x4d && (bytes[3] === 42 || bytes[3] === 43));

function tagsOf(view, offset, little) {
  if (offset + 2 > view.byteLength) throw new FileError("it ends too early");
  const count = view.getUint16(offset, little);
  if (offset + 6 + 12 * count > view.byteLength) throw new FileError("it ends too early");
  const tags = new Map();
  for (let k = 0; k < count; k += 1) {
    const at = offset + 2 + 12 * k;
    const [tag, type, number] = [
      view.getUint16(at, little),
      view.getUint16(at + 2, little),
      view.getUint32(at + 4, little),
    ];
    const size = SIZES[type];
    if (!size || !(LONG.has(tag) || SHORT.has(tag))) continue;
    const place = size * number <= 4 ? at + 8 : view.getUint32(at + 8, little);
    if (place + size * number > view.byteLength) throw new FileError("it ends too early");
    const values = [];
    const most = Math.min(number, LONG.has(tag) ? MOST_BLOCKS : MOST_VALUES);
    for (let n = 0; n < most; n += 1) {
      const where = place + n * size;
      if (type === 3) values.push(view.getUint16(where, little));
      else if (type === 4) values.push(view.getUint32(where, little));
      else if (type === 5)
        values.push(view.getUint32(where, little) / view.getUint32(where + 4, little));
      else if (type === 12) values.push(view.getFloat64(where, little));
      else if (type === 11) values.push(view.getFloat32(where, little));
      else values.push(view.getUint8(where));
    }
    tags.set(tag, values);
  }
  return { tags, next: view.getUint32(offset + 2 + 12 * count, little) };
}

function unpackBits(bytes, expected) {
  const found = new Uint8Array(expected);
  let [at, n] = [0, 0];
  while (at < bytes.length && n < expected) {
    const control = (bytes[at] << 24) >> 24;
    at += 1;
    if (control >= 0) {
      const run = bytes.subarray(at, Math.min(at + control + 1, at + expected - n));
      found.set(run, n);
      at += control + 1;
      n += run.length;
    } else if (control !== -128) {
      const run = Math.min(1 - control, expected - n);
      found.fill(bytes[at], n, n + run);
      at += 1;
      n += run;
    }
  }
  if (n < expected) throw new FileError("it ends too early: pixels are missing");
  return found;
}

function unpackLzw(bytes, expected) {
  const found = new Uint8Array(expected);
  const [prefix, last, lengths] = [new Uint16Array(4097), new Uint8Array(4097), new Uint16Array(4097)];
  for (let k = 0; k < 256; k += 1) [last[k], lengths[k]] = [k, 1];
  let [n, next, width, bits, count, at, previous] = [0, 258, 9, 0, 0, 0, -1];
  while (n < expected) {
    while (count < width) {
      if (at >= bytes.length) throw new FileError("it ends too early: pixels are missing");
      bits = ((bits << 8) | bytes[at]) & 0xffffff;
      at += 1;
      count += 8;
    }
    const code = (bits >> (count - width)) & ((1 << width) - 1);
    count -= width;
    if (code === 257) break;
    if (code === 256) {
      [next, width, previous] = [258, 9, -1];
      continue;
    }
    if (code > next || (code === next && previous < 0) || (code >= 258 && previous < 0))
      throw new FileError("its compressed data are damaged");
    const entry = code < next ? code : previous;
    let length = lengths[entry];
    let first = entry;
    for (let k = length; k > 1; k -= 1) first = prefix[first];
    const start = last[first];
    let write = entry;
    for (let k = length - 1; k >= 0; k -= 1) {
      if (n + k < expected) found[n + k] = last[write];
      write = prefix[write];
    }
    n += length;
    if (code === next) {
      if (n < expected) found[n] = start;
      n += 1;
      length += 1;
    }
    if (previous >= 0 && next < 4096) {
      [prefix[next], last[next], lengths[next]] = [previous, start, lengths[previous] + 1];
      next += 1;
      if (next === 511 || next === 1023 || next === 2047) width += 1;
    }
    previous = code;
  }
  if (n < expected) throw new FileError("it ends too early: pixels are missing");
  return found;
}

async function unpacked(bytes, compression, expected) {
  if (compression === 1) {
    if (bytes.length < expected) throw new FileError("it ends too early: pixels are missing");
    return bytes.slice(0, expected);
  }
  if (compression === 8 || compression === 32946) return inflate(bytes, expected);
  if (compression === 5) return unpackLzw(bytes, expected);
  if (compression === 32773) return unpackBits(bytes, expected);
  const name = COMPRESSIONS[compression] ?? `number ${compression}`;
  throw new FileError(`its compression, ${name}, is not known here`);
}

/** Undo the difference to the pixel before, in place, and the order of bytes. */
function ordered(bytes, { rows, columns, perPixel, bits, predictor, little }) {
  const size = bits / 8;
  const rowBytes = columns * perPixel * size;
  if (predictor === 3) {
    // Bytes of all values of a row together, the most significant first.
    const found = new Uint8Array(bytes.length);
    for (let y = 0; y < rows; y += 1) {
      const row = bytes.subarray(y * rowBytes, (y + 1) * rowBytes);
      for (let k = perPixel; k < rowBytes; k += 1) row[k] += row[k - perPixel];
      const values = columns * perPixel;
      for (let k = 0; k < values; k += 1)
        for (let b = 0; b < size; b += 1)
          found[y * rowBytes + k * size + size - 1 - b] = row[b * values + k];
    }
    return found;
  }
  if (!little && size > 1)
    for (let k = 0; k + size <= bytes.length; k += size) bytes.subarray(k, k + size).reverse();
  if (predictor === 2) {
    const kind = { 8: Uint8Array, 16: Uint16Array, 32: Uint32Array }[bits];
    if (!kind) throw new FileError("its predictor is not known here");
    const values = new kind(bytes.buffer);
    const length = columns * perPixel;
    for (let y = 0; y < rows; y += 1)
      for (let k = y * length + perPixel; k < (y + 1) * length; k += 1) values[k] += values[k - perPixel];
  }
  return bytes;
}

const ARRAYS = { "1 8": Uint8Array, "1 16": Uint16Array, "3 32": Float32Array, "3 64": Float64Array };

export async function readTiff(bytes, checkSize) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 8) throw new FileError("it ends too early");
  const little = bytes[0] === 0x49;
  if (view.getUint16(2, little) === 43)
    throw new FileError("it is a BigTIFF file, which is not known here");
  const { tags, next } = tagsOf(view, view.getUint32(4, little), little);
  const one = (tag, otherwise) => tags.get(tag)?.[0] ?? otherwise;
  const [width, height] = [one(256, 0), one(257, 0)];
  if (!width || !height) throw new FileError("its header is damaged");
  if (next) {
    const { tags: second } = tagsOf(view, next, little);
    if (!((second.get(254)?.[0] ?? 0) & 1))
      throw new FileError("it has several pages; the command line takes stacks and volumes");
  }
  checkSize(width, height);
  const perPixel = one(277, 1);
  const [bits, format, photometric] = [one(258, 1), one(339, 1), one(262, 1)];
  const kind = ARRAYS[`${format} ${bits}`];
  if (!kind || (tags.get(258) ?? []).some((other) => other !== bits))
    throw new FileError(
      `its values of ${bits} bits${format === 2 ? " with a sign" : ""} are not known here; ` +
        "8 and 16 bits and floating point are",
    );
  if (photometric > 2) throw new FileError("its colours are neither grey nor RGB");
  const samples = photometric === 2 ? 3 : 1;
  if (perPixel < samples || perPixel > samples + 1)
    throw new FileError(`it has ${perPixel} values for each pixel; grey and RGB are known here`);
  const extra = TRANSPARENCY.find((kind) => kind === one(338, 0)) ?? 0;
  if (perPixel > samples && !extra && (samples === 1 || tags.has(GEO_KEYS)))
    throw new FileError(
      samples === 1
        ? "it has two channels; the command line denoises both"
        : "it has four bands; the command line denoises all of them",
    );
  const separate = one(284, 1) === 2 && perPixel > 1;
  const tiled = tags.has(322);
  const [blockWidth, blockHeight] = tiled
    ? [one(322, 0), one(323, 0)]
    : [width, Math.min(one(278, height), height)];
  if (!blockWidth || !blockHeight) throw new FileError("its header is damaged");
  checkSize(blockWidth, blockHeight);
  const offsets = tags.get(tiled ? 324 : 273) ?? [];
  const counts = tags.get(tiled ? 325 : 279) ?? [];
  const [across, down] = [Math.ceil(width / blockWidth), Math.ceil(height / blockHeight)];
  const planes = separate ? perPixel : 1;
  if (offsets.length < across * down * planes || counts.length < offsets.length)
    throw new FileError("its header is damaged");
  const data = new kind(width * height * perPixel);
  const inBlock = separate ? 1 : perPixel;
  const [compression, predictor] = [one(259, 1), one(317, 1)];
  for (let n = 0; n < across * down * planes; n += 1) {
    const plane = Math.floor(n / (across * down));
    const [row, column] = [Math.floor((n % (across * down)) / across), n % across];
    const rows = tiled ? blockHeight : Math.min(blockHeight, height - row * blockHeight);
    const place = offsets[n];
    if (place + counts[n] > bytes.length) throw new FileError("it ends too early: pixels are missing");
    const expected = (rows * blockWidth * inBlock * bits) / 8;
    const packed = bytes.subarray(place, place + counts[n]);
    const raw = await unpacked(packed, compression, expected);
    const values = new kind(
      ordered(raw, { rows, columns: blockWidth, perPixel: inBlock, bits, predictor, little }).buffer,
    );
    const visible = Math.min(blockWidth, width - column * blockWidth);
    for (let y = 0; y < rows && row * blockHeight + y < height; y += 1)
      for (let x = 0; x < visible; x += 1)
        for (let c = 0; c < inBlock; c += 1)
          data[((row * blockHeight + y) * width + column * blockWidth + x) * perPixel + plane + c] =
            values[(y * blockWidth + x) * inBlock + c];
  }
  const inverted = photometric === 0;
  const kept = KEPT.filter((tag) => tags.has(tag)).map((tag) => [tag, one(tag)]);
  const layout = { stride: perPixel, samples, extra, separate };
  return { format: "tiff", width, height, ...layout, data, inverted, kept };
}

/** Return an uncompressed TIFF file with the type of the data. */
export function writeTiff(image) {
  const { width, height, stride, samples, data, extra, inverted = false, kept = [] } = image;
  const size = data.BYTES_PER_ELEMENT;
  const float = data instanceof Float32Array || data instanceof Float64Array;
  const photometric = samples === 3 ? 2 : inverted ? 0 : 1;
  const short = (tag, ...values) => ({ tag, type: 3, values });
  const long = (tag, value) => ({ tag, type: 4, values: [value] });
  const entries = [
    long(256, width),
    long(257, height),
    short(258, ...new Array(stride).fill(8 * size)),
    short(259, 1),
    short(262, photometric),
    long(273, 0),
    short(277, stride),
    long(278, height),
    long(279, data.byteLength),
    ...kept.map(([tag, value]) =>
      tag === 296 ? short(296, value) : { tag, type: 5, values: [value] },
    ),
    short(284, 1),
    ...(stride > samples ? [short(338, extra)] : []),
    short(339, ...new Array(stride).fill(float ? 3 : 1)),
  ].sort((a, b) => a.tag - b.tag);
  const lengths = { 3: 2, 4: 4, 5: 8 };
  const header = 8 + 2 + 12 * entries.length + 4;
  let end = header;
  for (const entry of entries) {
    const length = lengths[entry.type] * entry.values.length;
    if (length > 4) {
      entry.place = end;
      end += length + (length & 1);
    }
  }
  const start = Math.ceil(end / 16) * 16;
  const head = new Uint8Array(start);
  const view = new DataView(head.buffer);
  view.setUint16(0, 0x4949);
  view.setUint16(2, 42, true);
  view.setUint32(4, 8, true);
  view.setUint16(8, entries.length, true);
  entries.forEach(({ tag, type, values, place }, k) => {
    const at = 10 + 12 * k;
    view.setUint16(at, tag, true);
    view.setUint16(at + 2, type, true);
    view.setUint32(at + 4, values.length, true);
    if (place) view.setUint32(at + 8, place, true);
    values.forEach((given, n) => {
      const value = tag === 273 ? start : given;
      const where = (place ?? at + 8) + n * lengths[type];
      if (type === 3) view.setUint16(where, value, true);
      else if (type === 4) view.setUint32(where, value, true);
      else {
        // Of 500000 pixels per centimetre, say, ten thousandths would not fit.
        const parts = value * 10000 < 2 ** 32 ? 10000 : 1;
        view.setUint32(where, Math.round(value * parts), true);
        view.setUint32(where + 4, parts, true);
      }
    });
  });
  return new Blob([head, data], { type: "image/tiff" });
}
