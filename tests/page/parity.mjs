// Compute with the modules of the page what tests/page/test_parity.py computes in Python:
//   node parity.mjs DIST TASK FILE

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [dist, task, file] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${dist}/${name}`));
const json = (name) => JSON.parse(readFileSync(name, "utf8"));

const { models } = json(`${dist}/data/models.json`);
const constants = json(`${dist}/data/constants.json`);
const modelNamed = (name) => models.find((model) => model.name === name);
const given = json(file);

const { discreteGaussian } = await load("core/gaussian.js");
const { evolutionAt } = await load("core/models.js");
const { estimate, resolve, survey } = await load("core/resolve.js");
const { denoisePart, planOf } = await load("core/denoise.js");
const { Engine } = await load("core/engine.js");
const { explainAt } = await load("core/explain.js");
const { readImage, writeImage } = await load("formats/files.js");
const { commandFor, pythonFor } = await load("app/commands.js");
const { rangeOf } = await load("app/pixels.js");

const ARRAYS = { uint8: Uint8Array, uint16: Uint16Array, float32: Float32Array, float64: Float64Array };

const fileAt = (path) => readImage(path.split("/").at(-1), new Uint8Array(readFileSync(path)));

const base64 = async ({ blob }) => Buffer.from(await blob.arrayBuffer()).toString("base64");

const engineOfOne = () =>
  new Engine(new WebAssembly.Module(readFileSync(`${dist}/kernels/single.wasm`)), { shared: false });

function imageOf({ path, shape, dtype }) {
  const bytes = readFileSync(path);
  const data = new ARRAYS[dtype](bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  const samples = shape[2] ?? 1;
  return { data, height: shape[0], width: shape[1], samples, stride: samples };
}

const tasks = {
  taps: () => given.map(([scale, tolerance]) => discreteGaussian(scale, tolerance)),

  laws: () => given.map(([name, sigma]) => evolutionAt(modelNamed(name), sigma)),

  resolve: () =>
    given.map(({ image, requests }) => {
      const found = survey(imageOf(image), constants);
      return requests.map(([name, sigma]) => {
        try {
          const plan = resolve(found, modelNamed(name), sigma);
          const groups = plan.groups.map(({ factor, level, relative }) => ({
            factor,
            level,
            relative: [0.1, 0.7, 1.1, 3, 7].map((scale) => (relative ? relative(scale) : 1)),
          }));
          const { forward, backward } = plan;
          return { sigmas: estimate(found)?.sigmas, forward, backward, groups };
        } catch (error) {
          return { error: error.message };
        }
      });
    }),

  denoise() {
    const engine = engineOfOne();
    return given.map(({ image, model, sigma, limit, part }) => {
      const opened = imageOf(image);
      const plan = planOf(survey(opened, constants), modelNamed(model), sigma);
      const whole = { x: 0, y: 0, width: opened.width, height: opened.height };
      const options = { limit: limit ?? 2 ** 30 };
      return Array.from(denoisePart(engine, opened, plan, part ?? whole, options).result);
    });
  },

  explain: () =>
    given.map(({ image, model, sigma, step, places }) => {
      const { data, width, height } = imageOf(image);
      const evolution = evolutionAt(modelNamed(model), sigma);
      return places.map(([x, y]) => explainAt(data, { width, height }, evolution, step, x, y));
    }),

  async files() {
    const found = [];
    for (const path of given) {
      try {
        const image = await fileAt(path);
        const values = new Float64Array((image.data.length / image.stride) * image.samples);
        for (let n = 0; n < values.length; n += 1)
          values[n] = image.data[Math.floor(n / image.samples) * image.stride + (n % image.samples)];
        const written = await writeImage(image, values, "copy");
        const { width, height, samples, stride } = image;
        found.push({
          ...{ width, height, samples, stride, type: image.data.constructor.name },
          data: Array.from(image.data),
          name: written.name,
          written: await base64(written),
        });
      } catch (error) {
        found.push({ error: error.message });
      }
    }
    return found;
  },

  /** Denoise files, with the command and the code that are shown for them. */
  async shown() {
    const engine = engineOfOne();
    const found = [];
    for (const { path, model, sigma } of given) {
      const image = await fileAt(path);
      const { width, height } = image;
      const plan = planOf(survey(image, constants), modelNamed(model), sigma);
      const whole = { x: 0, y: 0, width, height };
      const { result } = denoisePart(engine, image, plan, whole, { limit: 2 ** 30 });
      const settings = { model, defaultModel: "", sigma };
      const { name, blob } = await writeImage(image, result, "denoised");
      found.push({
        name,
        written: await base64({ blob }),
        command: commandFor(image, settings),
        python: pythonFor(image, settings),
      });
    }
    return found;
  },

  ranges: () => given.map(({ image, samples }) => rangeOf({ ...imageOf(image), samples })),

  commands: () =>
    given.map(({ image, settings }) => {
      const about = { ...image, data: new ARRAYS[image.dtype](0) };
      return [commandFor(about, settings), pythonFor(about, settings)];
    }),
};

console.log(JSON.stringify(await tasks[task]()));
