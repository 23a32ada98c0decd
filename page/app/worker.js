// The worker that computes: it holds the image, and the engine with its helpers.

import { HALO, denoisePart, forwardPlanes, planOf, stepCount } from "../core/denoise.js";
import { Engine } from "../core/engine.js";
import { explainAt } from "../core/explain.js";
import { estimate, survey } from "../core/resolve.js";

let engine;
let image;
let found;
let models;
let constants;
let limit;

async function start({ module, shared, helpers, data, memoryLimit }) {
  ({ models, constants } = data);
  limit = memoryLimit;
  engine = new Engine(module, { shared });
  const invitations = Array.from({ length: shared ? helpers : 0 }, () => engine.invitation());
  await Promise.all(
    invitations.map(
      (invitation) =>
        new Promise((resolve, reject) => {
          const helper = new Worker(new URL("./helper.js", import.meta.url), { type: "module" });
          helper.onmessage = resolve;
          helper.onerror = (event) => reject(new Error(event.message || "a helper did not start"));
          helper.postMessage(invitation);
        }),
    ),
  );
  engine.useHelpers(invitations.length);
  return { workers: invitations.length + 1 };
}

const modelNamed = (name) => models.find((model) => model.name === name);

const actions = {
  start,

  open(given) {
    image = given;
    found = survey(image, constants);
    return estimate(found);
  },

  denoise({ model, sigma, part, keepSteps }) {
    const plan = planOf(found, modelNamed(model), sigma);
    const total = stepCount(image, plan, part, limit);
    let done = 0;
    const begun = performance.now();
    const { result, images } = denoisePart(engine, image, plan, part, {
      limit,
      keepSteps,
      onStep() {
        done += 1;
        postMessage({ progress: done, total });
      },
    });
    return { result, images, steps: plan.steps, seconds: (performance.now() - begun) / 1000 };
  },

  /** Structure and diffusivities at a place of an image that is a step of the evolution. */
  explain({ model, sigma, values, part, x, y, step }) {
    const plan = planOf(found, modelNamed(model), sigma);
    const group = plan.groups[0];
    if (!group) return null;
    const seen = { data: values, stride: image.samples, samples: image.samples, ...part, x: 0, y: 0 };
    const reach = HALO;
    const left = Math.max(x - reach, 0);
    const top = Math.max(y - reach, 0);
    const crop = {
      x: left,
      y: top,
      width: Math.min(x + reach, part.width) - left,
      height: Math.min(y + reach, part.height) - top,
    };
    const planes = forwardPlanes(seen, plan, group, crop);
    const size = { width: crop.width, height: crop.height };
    const explained = explainAt(planes, size, group.evolution, step, x - left, y - top);
    return { ...explained, factor: group.factor };
  },
};

onmessage = async ({ data: { id, action, argument } }) => {
  try {
    const answer = await actions[action](argument);
    const buffers = [answer?.result, ...(answer?.images ?? [])].filter(Boolean).map((a) => a.buffer);
    postMessage({ id, answer }, buffers);
  } catch (error) {
    const memory =
      error instanceof WebAssembly.RuntimeError ||
      /memory|allocation/i.test(error.message) ||
      error instanceof RangeError && /array|buffer|length/i.test(error.message);
    const message = memory
      ? "the browser has not enough memory for it; close other pages, or take the command line"
      : error.message;
    postMessage({ id, error: message, fatal: error instanceof WebAssembly.RuntimeError });
  }
};
