// Values of images as pixels of a screen, noise to try with, and the error against a clean image.

/** Return the values that are black and white on the screen. */
export function windowOf(image) {
  const { data, stride, samples, inverted } = image;
  if (data instanceof Uint8Array) return inverted ? [255, 0] : [0, 255];
  const step = Math.max(1, Math.floor(data.length / stride / 50000));
  const values = [];
  for (let k = 0; k < data.length; k += stride * step)
    for (let s = 0; s < samples; s += 1) values.push(data[k + s]);
  values.sort((a, b) => a - b);
  const at = (part) => values[Math.round(part * (values.length - 1))];
  const [low, high] = [at(0.002), at(0.998)];
  const ends = high > low ? [low, high] : [low - 1, low + 1];
  return inverted ? ends.reverse() : ends;
}

/** Largest difference of grey values that an image could have; src/integrodiff/grey_range.py. */
export function rangeOf(image) {
  const { data, stride, samples } = image;
  if (data instanceof Uint8Array) return 255;
  let [low, high] = [Infinity, -Infinity];
  for (let k = 0; k < data.length; k += stride)
    for (let s = k; s < k + samples; s += 1) {
      if (data[s] < low) low = data[s];
      if (data[s] > high) high = data[s];
    }
  if (data instanceof Uint16Array) return 2 ** [8, 10, 12, 14, 16].find((b) => 2 ** b > high) - 1;
  return high - low || 1;
}

/**
 * Paint values with `stride` for each pixel, of which `samples` count, to a new canvas; `minus` others,
 * without transparency, if they are given.
 */
export function painted({ data, stride, samples, width, height }, [black, white], minus = null) {
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { alpha: false });
  const rows = Math.max(1, Math.floor(2 ** 21 / width));
  const factor = 255 / (white - black);
  for (let y = 0; y < height; y += rows) {
    const count = Math.min(rows, height - y);
    const band = context.createImageData(width, count);
    const pixels = band.data;
    let k = y * width * stride;
    let m = y * width * samples;
    const value = minus ? (s) => data[k + s] - minus[m + s] : (s) => data[k + s];
    for (let n = 0; n < pixels.length; n += 4, k += stride, m += samples) {
      const red = (value(0) - black) * factor;
      pixels[n] = red;
      pixels[n + 1] = samples === 3 ? (value(1) - black) * factor : red;
      pixels[n + 2] = samples === 3 ? (value(2) - black) * factor : red;
      pixels[n + 3] = 255;
    }
    context.putImageData(band, 0, y);
  }
  return canvas;
}

/** Return the values of a part of an image, without transparency. */
export function partOf(image, part) {
  const { data, stride, samples, width } = image;
  const values = new Float32Array(part.width * part.height * samples);
  let n = 0;
  for (let y = part.y; y < part.y + part.height; y += 1)
    for (let x = part.x; x < part.x + part.width; x += 1)
      for (let s = 0; s < samples; s += 1, n += 1) values[n] = data[(y * width + x) * stride + s];
  return values;
}

/** Uniform numbers from 0 to 1, the same for each seed. */
function* uniform(seed) {
  let state = seed >>> 0;
  for (;;) {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    yield ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }
}

/** Return the image in floating point with Gaussian noise; nothing is rounded or clipped. */
export function withNoise(image, level) {
  const { width, height, samples, name } = image;
  const data = partOf(image, { x: 0, y: 0, width, height });
  const random = uniform(1);
  const next = () => random.next().value;
  for (let k = 0; k < data.length; k += 2) {
    const radius = level * Math.sqrt(-2 * Math.log(1 - next()));
    const angle = 2 * Math.PI * next();
    data[k] += radius * Math.cos(angle);
    if (k + 1 < data.length) data[k + 1] += radius * Math.sin(angle);
  }
  const stem = name.replace(/\.[^.]*$/, "");
  const about = { format: "tiff", inverted: image.inverted, name: `${stem}-noisy.tif` };
  return { ...about, width, height, samples, stride: samples, data };
}

/** Peak signal-to-noise ratio in decibels. */
export function psnr(clean, values, range) {
  let sum = 0;
  for (let k = 0; k < clean.length; k += 1) sum += (clean[k] - values[k]) ** 2;
  return 10 * Math.log10((range ** 2 * clean.length) / sum);
}
