// Noise, colour space and scale of an image: what a request leaves open. src/integrodiff/request.py,
// colour.py and grey_range.py are the reference; the page takes Gaussian noise, one level for all
// samples or an estimate, and the colour space `auto`.

import { trainedLevels } from "./models.js";
import { glimpseOf, joinedLevels, noiseOf, tilesOf, white, withoutTexture } from "./noise.js";

const SMALLEST_IMAGE = 20;

const OPPONENT = [
  [1 / 3, 1 / 3, 1 / 3],
  [1 / Math.SQRT2, 0, -1 / Math.SQRT2],
  [1 / Math.sqrt(6), -2 / Math.sqrt(6), 1 / Math.sqrt(6)],
];

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function quantile(values, part) {
  const sorted = Float64Array.from(values).sort();
  const place = part * (sorted.length - 1);
  const low = Math.floor(place);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
}

function structureOverNoise(energies, sigma, c) {
  const ratios = Array.from(energies, (energy) => Math.sqrt(Math.max(energy / sigma ** 2 - 1, 0)));
  const usual = quantile(ratios, c.USUAL);
  return mean(ratios.map((ratio) => Math.sqrt(Math.min(ratio, usual)))) ** 2;
}

function operatingLevel(structure, trained, c) {
  const level = structure > 0 ? 255 / (c.RANGE_OF_STRUCTURE * structure) : 255;
  if (!trained.length) return Math.min(level, 255);
  return Math.min(Math.max(level, c.LOWEST * Math.min(...trained)), c.HIGHEST * Math.max(...trained));
}

/** Return the variance of all pixels, as the only tile of an image that is too small for tiles. */
function overallVariance(image, weights) {
  const { data, stride } = image;
  const values = [];
  for (let k = 0; k < data.length; k += stride)
    values.push(weights.reduce((sum, weight, s) => sum + weight * data[k + s], 0));
  const average = mean(values);
  return { energies: [mean(values.map((value) => (value - average) ** 2))], unit: 1 };
}

function inverse(m) {
  if (m.length === 1) return [[1 / m[0][0]]];
  const [[a, b, c], [d, e, f], [g, h, i]] = m;
  const det = a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g);
  return [
    [e * i - f * h, c * h - b * i, b * f - c * e],
    [f * g - d * i, a * i - c * g, c * d - a * f],
    [d * h - e * g, b * g - a * h, a * e - b * d],
  ].map((row) => row.map((value) => value / det));
}

/** What was seen of an image: it does not depend on model and noise level. */
export function survey(image, constants) {
  const matrix = image.samples === 3 ? OPPONENT : [[1]];
  const glimpse = glimpseOf(image, constants);
  const tilesFor = (weights) => glimpse && tilesOf(glimpse, weights, constants);
  const tiles = matrix.map(tilesFor);
  const seenIn = (some, rows) => some.map((found, k) => found ?? overallVariance(image, rows[k]));
  const seen = seenIn(tiles, matrix);
  const members = image.samples === 3 ? [[0], [1, 2]] : [[0]];
  const given = { matrix, seen, members };
  const isLarge = Math.min(image.height, image.width) >= SMALLEST_IMAGE;
  const isConstant = !isLarge && seen.every(({ energies }) => energies[0] === 0);
  if (!isLarge && !isConstant) return { given, estimated: null, constants };
  const found = tiles.map((some) => noiseOf(some, constants));
  if (image.samples !== 3)
    return { given, estimated: { ...given, samples: found, noise: found }, constants };
  const identity = matrix.map((_, k) => matrix.map((__, s) => (s === k ? 1 : 0)));
  const own = identity.map(tilesFor);
  const samples = own.map((some) => noiseOf(some, constants));
  const noisy = [0, 1, 2].filter((s) => samples[s].effective > 0);
  const [corrected, others] = withoutTexture(samples, found);
  let estimated = { ...given, samples: corrected, noise: reconciled(others, corrected, matrix) };
  if (noisy.length === 1 || noisy.length === 2) {
    // Nothing of the others may get into a sample without noise; such samples are the last.
    const order = [...noisy, ...[0, 1, 2].filter((s) => !noisy.includes(s))];
    const ownSeen = seenIn(own, identity);
    estimated = {
      matrix: order.map((s) => identity[s]),
      seen: order.map((s) => ownSeen[s]),
      members: [noisy.map((_, k) => k)],
      samples,
      noise: order.map((s) => samples[s]),
    };
  }
  return { given, estimated, constants };
}

function newLevels(matrix, levels) {
  return matrix.map((row) =>
    Math.sqrt(row.reduce((sum, weight, s) => sum + weight ** 2 * levels[s] ** 2, 0)),
  );
}

/** Noise of colour differences is at least that of independent samples, and at most their sum. */
function reconciled(found, samples, matrix) {
  const { constants } = found[0];
  const levels = samples.map((sample) => sample.effective);
  const computed = newLevels(matrix, levels);
  const shape = samples[0];
  return found.map((own, k) => {
    let noise = own;
    if (noise.effective < computed[k])
      noise = shape.isWhite
        ? white(computed[k], constants)
        : shape.times(computed[k] / shape.effective);
    const most = matrix[k].reduce((sum, weight, s) => sum + Math.abs(weight) * levels[s], 0);
    return noise.effective <= most ? noise : noise.times(most / noise.effective);
  });
}

/**
 * Return matrices to and from the samples that are denoised, and the groups of them that share a
 * structure tensor, each with the factor to the scale of the model, the noise level on it, and how
 * the level depends on the scale. `sigma` is a noise level in grey values, or null for the estimate.
 */
export function resolve(found, model, sigma) {
  const { constants } = found;
  if (sigma === null && !found.estimated)
    throw new RangeError(
      `an image of fewer than ${SMALLEST_IMAGE} x ${SMALLEST_IMAGE} pixels is too small to estimate ` +
        "its noise: set the noise level",
    );
  const { matrix, seen, members } = sigma === null ? found.estimated : found.given;
  const noise =
    sigma === null
      ? found.estimated.noise
      : newLevels(matrix, matrix.map(() => sigma)).map((level) => white(level, constants));
  const levels = noise.map((one) => one.effective);
  const factors = levels.map(() => 1);
  const groups = [];
  for (const samples of members) {
    if (samples.every((s) => levels[s] === 0)) continue;
    const common = 1 / Math.sqrt(mean(samples.map((s) => levels[s] ** -2)));
    for (const s of samples) factors[s] = common / levels[s];
    const ratios = samples.map((s) =>
      structureOverNoise(seen[s].energies, noise[s].sigma / seen[s].unit, constants.greyRange),
    );
    const level = operatingLevel(mean(ratios), trainedLevels(model), constants.greyRange);
    const shape = joinedLevels(samples.map((s) => noise[s]));
    groups.push({
      samples,
      factor: level / common,
      level,
      relative: shape.isWhite ? null : (scale) => shape.relative(scale),
    });
  }
  const forward = matrix.map((row, k) => row.map((weight) => weight * factors[k]));
  return { forward, backward: inverse(forward), groups };
}

/** Return the estimated standard deviation of each sample, and what is to be said about it. */
export function estimate(found) {
  if (!found.estimated) return null;
  const { samples } = found.estimated;
  const sigmas = samples.map((sample) => sample.sigma);
  return {
    sigmas,
    sigma: Math.sqrt(mean(sigmas.map((sigma) => sigma ** 2))),
    correlated: samples.some((sample) => !sample.isWhite),
    doubtful: samples.some((sample) => sample.doubtful),
  };
}
