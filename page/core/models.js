// Models: for each noise level, the numbers of one diffusion process. Parameters come from the model
// files of the package; src/integrodiff/models has the laws, and tests/page holds these to them.

import { stableStep, stepTable } from "./stability.js";

const REFERENCE_LEVEL = 30;
const ROUNDING = 1 + 1e-9;
const SMALLEST_FLUX_CONTRAST = 0.01;

const clip = (value, lowest, highest) => Math.min(Math.max(value, lowest), highest);

/**
 * A process: increasing `scales`, a `schedule` of terms with one entry for all steps or one for each,
 * fidelity weights `pulls` likewise, `tau`, `steps` and `theta`.
 *
 * A term has an `order`, whether its gate is a `tensor`, the `mix` of its eigenvalues, an
 * `integrationScale`, and for each scale `couplingWeights`, `fluxWeights` and `contrasts`.
 */
const term = (order, tensor, weights, contrasts, more = {}) => ({
  order,
  tensor,
  mix: 0,
  integrationScale: 0,
  couplingWeights: weights,
  fluxWeights: weights,
  contrasts,
  ...more,
});

// ---- scales ----

function gridOf({ count, smallest, largest, quadrature }) {
  if (count === 1) return { scales: [smallest], weights: [1] };
  const scales = Array.from(
    { length: count },
    (_, i) => smallest * (largest / smallest) ** (i / (count - 1)),
  );
  scales[count - 1] = largest;
  if (quadrature === "none") return { scales, weights: scales.map(() => 1) };
  const weights = scales.map((scale, i) => {
    const [low, high] = [Math.max(i - 1, 0), Math.min(i + 1, count - 1)];
    const width = (scales[high] - scales[low]) / (high - low);
    return quadrature === "variance" ? scale * width : width;
  });
  return { scales, weights };
}

// ---- kinds of models: parameters and settings at a noise level -> process ----

const KINDS = {
  "perona-malik": (p) => ({
    scales: [0],
    schedule: [[term(1, false, [1], [p.contrast])]],
  }),

  eed: (p) => ({
    scales: [0, p.scale],
    schedule: [[term(1, true, [0, 1], [p.contrast, p.contrast], { fluxWeights: [1, 0] })]],
  }),

  iid: (p, settings, sigma) => integrodifferential(p, settings, sigma, false),
  iad: (p, settings, sigma) => integrodifferential(p, settings, sigma, true),

  compact: (p, settings, sigma) => ({
    ...powerLaws(p, settings, sigma, p.strengths.length, (order, grid, growth, drift) => {
      const i = order - 1;
      const weights = grid.scales.map(
        (scale, k) =>
          grid.weights[k] *
          p.strengths[i] *
          scale ** (p.exponents[i] + drift) *
          Math.exp((-2 * p.decays[i] * scale ** 2) / Math.sqrt(sigma)),
      );
      const contrasts = grid.scales.map(
        (scale) => p.contrasts[i] * sigma * scale ** -p.contrast_exponents[i] * growth,
      );
      const integrationScale = p.integration_scale ?? 0;
      return term(order, order === 1, weights, contrasts, { integrationScale });
    }),
    pulls: [p.pull ?? 0],
  }),

  "compact-tensor": (p, settings, sigma) =>
    powerLaws(p, settings, sigma, p.strengths.length, (order, grid, growth, drift) => {
      const i = order - 1;
      const weights = grid.scales.map(
        (scale, k) =>
          grid.weights[k] *
          p.strengths[i] *
          scale ** (p.exponent + i + drift) *
          Math.exp((-2 * p.decay * scale ** 2) / Math.sqrt(sigma)),
      );
      const contrasts = grid.scales.map(
        (scale) => p.contrasts[i] * sigma * scale ** -(p.contrast_exponent + i) * growth,
      );
      let integrationScale =
        p.integration_scales[i] * (sigma / REFERENCE_LEVEL) ** p.integration_exponent;
      if (settings.integration_limits?.length)
        integrationScale = clip(integrationScale, ...settings.integration_limits[i]);
      return term(order, true, weights, contrasts, { integrationScale });
    }),

  deep,
};

/** Of the stable step size that a step of these kinds may take. */
const SHARES_OF_BOUND = { "compact-tensor": 0.996 };

function integrodifferential(p, settings, sigma, tensor) {
  const { scales, weights } = gridOf(settings.scales);
  const full = p.form === "full";
  const gamma = (scale, i) =>
    full ? p.gammas[i] : Math.exp((-p.alpha * scale ** 2) / Math.sqrt(sigma));
  const lambda = (scale, i) =>
    full ? p.lambdas[i] : (p.lambda_0 * sigma) / (1 + p.beta * scale ** 2);
  const products = scales.map((scale, i) => weights[i] * gamma(scale, i) ** 2);
  return { scales, schedule: [[term(1, tensor, products, scales.map(lambda))]] };
}

function powerLaws(p, settings, sigma, orders, termOf) {
  const grid = gridOf(settings.scales);
  const growth = p.contrast_growth ?? 1;
  const drift = p.exponent_drift ?? 0;
  const entries = growth === 1 && drift === 0 ? 1 : settings.steps;
  const schedule = Array.from({ length: entries }, (_, step) =>
    Array.from({ length: orders }, (__, i) =>
      termOf(i + 1, grid, growth ** step, drift * (step / Math.max(settings.steps - 1, 1) - 0.5)),
    ),
  );
  const tau = p.tau * (sigma / REFERENCE_LEVEL) ** (p.tau_exponent ?? 0);
  return { scales: grid.scales, schedule, tau };
}

const tables = new Map();

function tableOf(channels, theta) {
  const key = JSON.stringify([channels, theta]);
  if (!tables.has(key)) tables.set(key, stepTable(channels, theta));
  return tables.get(key);
}

function deep(p, settings, sigma) {
  const { channels, steps, theta } = settings;
  const orders = [...new Set(channels.map(([order]) => order))].sort((a, b) => a - b);
  const scales = [...new Set(channels.map(([, scale]) => scale))].sort((a, b) => a - b);
  const held = settings.level_limits?.length ? clip(sigma, ...settings.level_limits) : sigma;
  const relative = held / REFERENCE_LEVEL;
  const count = channels.length;
  const acts = (step, m) => !settings.acting?.length || settings.acting[step].includes(m);
  /** Numbers of the channels that act, step by step, with another one where a channel does not. */
  const spread = (values, otherwise) => {
    if (!settings.acting?.length || values.length === count) return values;
    let next = 0;
    return Array.from({ length: steps * count }, (_, place) =>
      acts(Math.floor(place / count), place % count) ? values[next++] : otherwise,
    );
  };
  const numbers = Object.fromEntries(
    ["weights", "contrasts", "couplings", "weight_exponents", "contrast_exponents"].map((name) => [
      name,
      spread(p[name], name === "contrasts" ? 1 : 0),
    ]),
  );
  const ofChannel = (values, step, m) => values[values.length === count ? m : step * count + m];
  const ofOrder = (values, step, order, otherwise = 0) =>
    values?.length ? values[step * orders.length + orders.indexOf(order)] : otherwise;
  const curve = (values, m) => (values?.length ? Math.exp(values[m] * Math.log(relative) ** 2) : 1);
  const table = tableOf(channels, theta);
  const responses = channels.map(([order, scale]) => {
    const largest = { 1: (2 * Math.PI) ** -0.5, 2: (2 * Math.PI * Math.E) ** -0.5 }[order];
    return scale > 0 && largest ? Math.min(1, largest / scale ** order) ** 2 : 1;
  });
  const pulls = [];
  const schedule = Array.from({ length: steps }, (_, step) => {
    const exponent = (values, more, m) =>
      ofChannel(values, step, m) + ofOrder(more, step, channels[m][0]);
    const weights = channels.map(
      (__, m) =>
        numbers.weights[step * count + m] *
        relative ** exponent(numbers.weight_exponents, p.step_weight_exponents, m) *
        curve(p.weight_curvatures, m),
    );
    const couplings = weights.map((weight, m) => weight * ofChannel(numbers.couplings, step, m));
    const contrasts = channels.map(([order], m) => {
      let found =
        numbers.contrasts[step * count + m] *
        relative ** exponent(numbers.contrast_exponents, p.step_contrast_exponents, m) *
        curve(p.contrast_curvatures, m);
      if (settings.smallest_contrast) found = Math.max(found, settings.smallest_contrast);
      if (settings.contrast_floor?.length) {
        const [share, absolute] = settings.contrast_floor;
        const structure = channels.reduce(
          (sum, [other], k) => sum + (other === order ? couplings[k] * responses[k] : 0),
          0,
        );
        found = Math.max(found, Math.max(share, absolute / held) * Math.sqrt(structure));
      }
      return acts(step, m) ? found : 1 / sigma;
    });
    let largest = 0;
    for (let n = 0; n < table[0].length; n += 1) {
      let sum = 0;
      for (let m = 0; m < count; m += 1) sum += weights[m] * table[m][n];
      if (sum > largest) largest = sum;
    }
    const pull = p.pulls?.length ? p.pulls[step] * relative ** p.pull_exponents[0] : 0;
    largest += 2 * pull;
    const limit = 2 * (settings.largest_share ?? 1);
    const excess = largest > limit ? largest / limit : 1;
    pulls.push(pull / excess);
    const fluxes = weights.map((weight, m) =>
      contrasts[m] < SMALLEST_FLUX_CONTRAST ? 0 : weight / excess,
    );
    return orders.map((order, k) => {
      const place = (values, otherwise) =>
        scales.map((scale) => {
          const m = channels.findIndex((channel) => channel[0] === order && channel[1] === scale);
          return m < 0 ? otherwise : values[m];
        });
      let integrationScale = 0;
      if (p.integration_scales?.length) {
        integrationScale =
          ofOrder(p.integration_scales, step, order) *
          relative **
            (p.integration_exponents.length === orders.length
              ? p.integration_exponents[k]
              : ofOrder(p.integration_exponents, step, order));
        if (settings.integration_limits?.length)
          integrationScale = clip(integrationScale, ...settings.integration_limits[k]);
      }
      const tensor = order === 1 || (order === 2 && Boolean(settings.anisotropic));
      return term(
        order,
        tensor,
        place(couplings, 0),
        place(contrasts, 1 / sigma).map((contrast) => contrast * sigma),
        { fluxWeights: place(fluxes, 0), integrationScale, mix: ofOrder(p.mixes, step, order) },
      );
    });
  });
  return { scales, schedule, tau: 1, pulls: p.pulls?.length ? pulls : [0] };
}

// ---- models that are joined by noise level ----

/** Interpolate all parameters, which are logarithms in training, between two noise levels. */
function between(a, b, position) {
  if (Array.isArray(a)) return a.map((value, i) => between(value, b[i], position));
  if (typeof a === "number")
    return Math.exp((1 - position) * Math.log(a) + position * Math.log(b));
  if (typeof a !== "object") return a;
  return Object.fromEntries(
    Object.entries(a).map(([name, value]) => [name, between(value, b[name], position)]),
  );
}

function parametersAt(model, sigma) {
  const { levels, parameters } = model;
  const at = levels.indexOf(sigma);
  if (at >= 0 || levels.length === 1) return parameters[Math.max(at, 0)];
  const nearest = clip(sigma, levels[0], levels[levels.length - 1]);
  if (sigma !== nearest && parameters[0].form === "full") {
    const found = parameters[levels.indexOf(nearest)];
    const lambdas = found.lambdas.map((contrast) => (contrast * sigma) / nearest);
    return { ...found, lambdas };
  }
  const above = levels.filter((level) => level <= sigma).length;
  const right = clip(above, 1, levels.length - 1);
  const position =
    Math.log(sigma / levels[right - 1]) / Math.log(levels[right] / levels[right - 1]);
  return between(parameters[right - 1], parameters[right], position);
}

// ---- the process ----

const cache = new Map();

function evolutionOf(model, sigma) {
  const { settings } = model;
  const parameters = model.levels ? parametersAt(model, sigma) : model.parameters;
  const law = KINDS[model.model];
  if (!law || settings.discretisation !== "haar")
    throw new Error(`this page does not know models of the kind ${model.model}`);
  const evolution = {
    tau: parameters.tau,
    pulls: [0],
    steps: settings.steps,
    theta: settings.theta,
    ...law(parameters, settings, sigma),
  };
  const bound = (SHARES_OF_BOUND[model.model] ?? 1) * stableStep(evolution);
  if (evolution.tau > bound * ROUNDING) evolution.tau = bound;
  return evolution;
}

/**
 * Return the process of a model at a noise level on the scale [0, 255]; it is always stable.
 *
 * `relative(scale)` is the noise level at a scale relative to `sigma`, for noise that is not white.
 */
export function evolutionAt(model, sigma, relative = null) {
  if (!(sigma > 0 && Number.isFinite(sigma))) throw new RangeError("the noise level must be positive");
  const key = `${model.name} ${sigma}`;
  let evolution = cache.get(key);
  if (!evolution) {
    evolution = evolutionOf(model, sigma);
    if (cache.size > 50) cache.clear();
    if (model.name) cache.set(key, evolution);
  }
  if (!relative) return evolution;
  const schedule = evolution.schedule.map((terms) =>
    terms.map((one) => {
      const shift = Math.sqrt(2 / (one.order + 1));
      const contrasts = one.contrasts.map(
        (contrast, i) => contrast * relative(shift * evolution.scales[i]),
      );
      return { ...one, contrasts };
    }),
  );
  return { ...evolution, schedule };
}

/** Noise levels that a model was trained for. */
export const trainedLevels = (model) => model.provenance.noise_levels ?? model.levels ?? [];
