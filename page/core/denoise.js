// From an image to the denoised one, as src/integrodiff/pipeline.py does it: colour space, scale of
// the model, diffusion of each group of samples, and back.

import { evolutionAt } from "./models.js";
import { bytesPerPixel } from "./engine.js";
import { resolve } from "./resolve.js";

/** Rows and columns around a part of an image that have an effect on it; see docs/page.md. */
export const HALO = 96;

/** Return the processes of all groups of samples, for a model and a noise level or null. */
export function planOf(found, model, sigma) {
  const resolved = resolve(found, model, sigma);
  const groups = resolved.groups.map((group) => ({
    ...group,
    evolution: evolutionAt(model, group.level, group.relative),
  }));
  return { ...resolved, groups, steps: model.settings.steps };
}

/** Return planes of some new samples of a part of an image, on the scale of the model. */
export function forwardPlanes(image, { forward }, group, part) {
  const { data, width, stride, samples } = image;
  const size = part.height * part.width;
  const planes = new Float32Array(group.samples.length * size);
  group.samples.forEach((sample, p) => {
    const weights = forward[sample].map((weight) => weight * group.factor);
    let n = p * size;
    for (let y = part.y; y < part.y + part.height; y += 1) {
      let k = (y * width + part.x) * stride;
      for (let x = 0; x < part.width; x += 1, k += stride, n += 1) {
        let sum = 0;
        for (let s = 0; s < samples; s += 1) sum += weights[s] * data[k + s];
        planes[n] = sum;
      }
    }
  });
  return planes;
}

/** Undo it for all groups: `parts` has their planes. Samples without noise are those of the image. */
export function backward(image, plan, part, parts) {
  const { samples, data, stride, width } = image;
  const size = part.height * part.width;
  const result = new Float32Array(size * samples);
  const planes = Array.from({ length: samples }, () => null);
  plan.groups.forEach((group, g) => {
    group.samples.forEach((sample, p) => {
      const values = parts[g].subarray(p * size, (p + 1) * size);
      planes[sample] = { values, factor: 1 / group.factor };
    });
  });
  const source = new Float64Array(samples);
  const mixed = new Float64Array(samples);
  for (let y = 0, n = 0; y < part.height; y += 1) {
    let k = ((part.y + y) * width + part.x) * stride;
    for (let x = 0; x < part.width; x += 1, n += 1, k += stride) {
      for (let s = 0; s < samples; s += 1) source[s] = data[k + s];
      for (let s = 0; s < samples; s += 1) {
        if (planes[s]) mixed[s] = planes[s].values[n] * planes[s].factor;
        else {
          mixed[s] = 0;
          for (let c = 0; c < samples; c += 1) mixed[s] += plan.forward[s][c] * source[c];
        }
      }
      for (let s = 0; s < samples; s += 1) {
        let sum = 0;
        for (let c = 0; c < samples; c += 1) sum += plan.backward[s][c] * mixed[c];
        result[n * samples + s] = sum;
      }
    }
  }
  return result;
}

const widened = (part, image, halo) => {
  const x = Math.max(part.x - halo, 0);
  const y = Math.max(part.y - halo, 0);
  return {
    x,
    y,
    width: Math.min(part.x + part.width + halo, image.width) - x,
    height: Math.min(part.y + part.height + halo, image.height) - y,
  };
};

/** Copy the planes of a part out of those of a larger one, or into them. */
function copyPart(from, fromPart, to, toPart, inner, channels) {
  for (let c = 0; c < channels; c += 1)
    for (let y = inner.y; y < inner.y + inner.height; y += 1) {
      const source =
        (c * fromPart.height + y - fromPart.y) * fromPart.width + inner.x - fromPart.x;
      const target = (c * toPart.height + y - toPart.y) * toPart.width + inner.x - toPart.x;
      to.set(from.subarray(source, source + inner.width), target);
    }
}

/** Divide a part into bands of rows that need no more memory than `limit`. */
function bandsOf(part, image, evolution, channels, limit) {
  const perRow = bytesPerPixel(evolution, channels) * (Math.min(part.width + 2 * HALO, image.width) + 100);
  const most = Math.max(Math.floor(limit / perRow), 3 * HALO);
  if (widened(part, image, HALO).height <= most) return [part];
  const count = Math.ceil(part.height / (most - 2 * HALO));
  return Array.from({ length: count }, (_, k) => {
    const first = Math.floor((part.height * k) / count);
    const last = Math.floor((part.height * (k + 1)) / count);
    return { ...part, y: part.y + first, height: last - first };
  });
}

/** Number of steps over all groups and bands. */
export function stepCount(image, plan, part, limit) {
  return plan.groups.reduce(
    (sum, group) =>
      sum +
      plan.steps * bandsOf(part, image, group.evolution, group.samples.length, limit).length,
    0,
  );
}

/**
 * Denoise a part of an image. Parts of a larger image are widened by HALO, and large ones are divided
 * into bands.
 *
 * `onStep` is called after each step. With `keepSteps`, the image after each step is returned as well.
 * Images are arrays of single precision with all samples of a pixel together, without transparency.
 */
export function denoisePart(engine, image, plan, part, { limit, onStep, keepSteps = false }) {
  const results = [];
  const history = [];
  for (const group of plan.groups) {
    const channels = group.samples.length;
    const size = part.width * part.height * channels;
    const bands = bandsOf(part, image, group.evolution, channels, limit);
    const result = new Float32Array(size);
    const steps = keepSteps ? Array.from({ length: plan.steps - 1 }, () => new Float32Array(size)) : [];
    for (const band of bands) {
      const wide = widened(band, image, HALO);
      const planes = forwardPlanes(image, plan, group, wide);
      const run = engine.begin(group.evolution, planes, channels, wide.height, wide.width);
      for (let k = 0; k < plan.steps; k += 1) {
        run.advance();
        const target = k + 1 === plan.steps ? result : steps[k];
        if (target) copyPart(run.read(), wide, target, part, band, channels);
        onStep?.();
      }
      run.finish();
    }
    results.push(result);
    history.push(steps);
  }
  const images = Array.from({ length: keepSteps ? plan.steps - 1 : 0 }, (_, k) =>
    backward(image, plan, part, history.map((steps) => steps[k])),
  );
  return { result: backward(image, plan, part, results), images };
}
