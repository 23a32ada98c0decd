// Lindeberg's discrete Gaussian; src/integrodiff/stages/scale_space.py is the reference.

/** Mass of a kernel that does not count in single precision. */
export const SINGLE_PRECISION = 2 ** -24;
/** The same in double precision. */
export const DOUBLE_PRECISION = 2 ** -53;

/** Return e^-t I_n(t) for n = 0, ..., count - 1, by Miller's backward recurrence. */
function scaledBessel(count, t) {
  const values = new Float64Array(count);
  if (t === 0) {
    values[0] = 1;
    return values;
  }
  let above = 0;
  let here = 1e-280;
  let total = 0;
  for (let n = count + 60; n > 0; n -= 1) {
    const below = above + ((2 * n) / t) * here;
    above = here;
    here = below;
    if (n - 1 < count) values[n - 1] = here;
    total += n > 1 ? 2 * here : here;
    if (here > 1e200) {
      // The larger orders, which become zero, do not count.
      const shrink = 1e-300;
      above *= shrink;
      here *= shrink;
      total *= shrink;
      for (let k = n - 1; k < count; k += 1) values[k] *= shrink;
    }
  }
  return values.map((value) => value / total);
}

const cache = new Map();

/** Return one half of the discrete Gaussian, centre first, without a tail of mass `tolerance`. */
export function discreteGaussian(scale, tolerance = DOUBLE_PRECISION) {
  const key = `${scale} ${tolerance}`;
  const known = cache.get(key);
  if (known) return known;
  const variance = scale ** 2;
  const longest = variance > 1 ? Math.ceil(variance + 12 * scale + 30) : 40;
  const taps = scaledBessel(longest + 1, variance);
  let radius = longest;
  let beyond = 0;
  while (radius > 0 && 2 * (beyond + taps[radius]) <= tolerance) {
    beyond += taps[radius];
    radius -= 1;
  }
  const kept = Array.from(taps.slice(0, radius + 1));
  const whole = 2 * kept.reduce((sum, tap) => sum + tap, 0) - kept[0];
  const found = kept.map((tap) => tap / whole);
  if (cache.size > 200) cache.clear();
  cache.set(key, found);
  return found;
}

/** Return the scales by which a cascade goes from one of increasing scales to the next. */
export function increments(scales) {
  return scales.map((scale, i) => Math.sqrt(scale ** 2 - (i ? scales[i - 1] ** 2 : 0)));
}
