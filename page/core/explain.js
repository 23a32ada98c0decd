// Structure tensor and diffusivities at one place: equations (8) and (2) of the paper, for the term of
// order one. src/integrodiff/stages/step.py is the reference.

import { SINGLE_PRECISION, discreteGaussian, increments } from "./gaussian.js";

const reflect = (k, size) => {
  const at = ((k % (2 * size)) + 2 * size) % (2 * size);
  return at < size ? at : 2 * size - 1 - at;
};

function blurred(plane, width, height, taps) {
  const [half, found] = [new Float64Array(plane.length), new Float64Array(plane.length)];
  const radius = taps.length - 1;
  for (let y = 0; y < height; y += 1)
    for (let x = 0; x < width; x += 1) {
      let sum = taps[0] * plane[y * width + x];
      for (let k = 1; k <= radius; k += 1)
        sum +=
          taps[k] *
          (plane[y * width + reflect(x - k, width)] + plane[y * width + reflect(x + k, width)]);
      half[y * width + x] = sum;
    }
  for (let y = 0; y < height; y += 1)
    for (let x = 0; x < width; x += 1) {
      let sum = taps[0] * half[y * width + x];
      for (let k = 1; k <= radius; k += 1)
        sum +=
          taps[k] *
          (half[reflect(y - k, height) * width + x] + half[reflect(y + k, height) * width + x]);
      found[y * width + x] = sum;
    }
  return found;
}

/**
 * Return eigenvalues and direction of the structure tensor at the corner (x, y) of the pixel grid, from
 * 0 to width and height, and for each scale the diffusivities across and along.
 */
export function explainAt(planes, { width, height }, evolution, step, x, y) {
  const { scales, schedule } = evolution;
  const terms = schedule[schedule.length === 1 ? 0 : Math.min(step, schedule.length - 1)];
  const term = terms.find(({ order }) => order === 1);
  const size = width * height;
  const channels = planes.length / size;
  const smoothing = term.integrationScale ? discreteGaussian(term.integrationScale) : [1];
  const reach = smoothing.length - 1;
  const widths = increments(scales);
  const tensor = { xx: 0, xy: 0, yy: 0 };
  for (let c = 0; c < channels; c += 1) {
    let plane = Float64Array.from(planes.subarray(c * size, (c + 1) * size));
    scales.forEach((_, i) => {
      plane = blurred(plane, width, height, discreteGaussian(widths[i], SINGLE_PRECISION));
      const weight = term.couplingWeights[i] / channels;
      if (!weight) return;
      const at = (row, column) => plane[reflect(row, height) * width + reflect(column, width)];
      for (let dy = -reach; dy <= reach; dy += 1)
        for (let dx = -reach; dx <= reach; dx += 1) {
          const part = weight * smoothing[Math.abs(dy)] * smoothing[Math.abs(dx)];
          if (part < 1e-12) continue;
          const [row, column] = [y + dy, x + dx];
          const [u00, u01] = [at(row - 1, column - 1), at(row - 1, column)];
          const [u10, u11] = [at(row, column - 1), at(row, column)];
          const gx = (-u00 + u01 - u10 + u11) / 2;
          const gy = (-u00 - u01 + u10 + u11) / 2;
          tensor.xx += part * gx * gx;
          tensor.xy += part * gx * gy;
          tensor.yy += part * gy * gy;
        }
    });
  }
  const { xx, xy, yy } = tensor;
  const middle = (xx + yy) / 2;
  const gap = Math.hypot((xx - yy) / 2, xy);
  const mixed = (own, other) => own + term.mix * other;
  let [larger, smaller] = [middle + gap, Math.max(middle - gap, 0)];
  [larger, smaller] = [mixed(larger, smaller), mixed(smaller, larger)];
  if (!term.tensor) [larger, smaller] = [larger + smaller, larger + smaller];
  const gate = (mu, contrast) => Math.exp(-mu / (2 * contrast ** 2));
  return {
    larger,
    smaller,
    // Across structures, from the x axis downwards.
    angle: Math.atan2(2 * xy, xx - yy) / 2,
    scales: scales
      .map((scale, i) => ({
        scale,
        weight: term.fluxWeights[i],
        contrast: term.contrasts[i],
        across: gate(larger, term.contrasts[i]),
        along: gate(smaller, term.contrasts[i]),
      }))
      .filter(({ weight }) => weight > 0),
  };
}
