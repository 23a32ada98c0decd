// zlib by the browser's own streams.

import { FileError } from "./errors.js";

async function through(stream, bytes, most) {
  const writer = stream.writable.getWriter();
  // Errors of the writer show at the reader, too.
  writer.write(bytes).catch(() => {});
  writer.close().catch(() => {});
  const parts = [];
  let total = 0;
  const reader = stream.readable.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    total += value.length;
    if (total > most) {
      await reader.cancel();
      break;
    }
  }
  const found = new Uint8Array(Math.min(total, most));
  let at = 0;
  for (const part of parts) {
    found.set(part.subarray(0, found.length - at), at);
    at += part.length;
    if (at >= found.length) break;
  }
  return found;
}

/** Return `expected` bytes from zlib data; more are ignored, fewer are an error. */
export async function inflate(bytes, expected) {
  let found;
  try {
    found = await through(new DecompressionStream("deflate"), bytes, expected);
  } catch {
    throw new FileError("its compressed data are damaged");
  }
  if (found.length < expected) throw new FileError("it ends too early: pixels are missing");
  return found;
}

export const deflate = (bytes) => through(new CompressionStream("deflate"), bytes, Infinity);
