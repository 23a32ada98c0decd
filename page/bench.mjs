// For benchmarks/page.py: node bench.mjs ADDRESS IMAGE SIDE MODEL SIGMA. Reads lines with a number of
// workers, or "load", and answers each with the seconds that a run, or loading the page, took.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { launch } from "./browser.mjs";

const [address, file, side, model, sigma] = process.argv.slice(2);
const browser = await launch();
const context = await browser.newContext({ serviceWorkers: "block" });
const page = await context.newPage();
await page.goto(address);
await page.waitForSelector("body[data-ready]");
const values = readFileSync(file).toString("base64");

await page.evaluate(
  async ([encoded, length, name, level]) => {
    const bytes = Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0));
    const json = async (path) => (await fetch(path)).json();
    const { models } = await json("data/models.json");
    const data = { models, constants: await json("data/constants.json") };
    const kernels = await (await fetch("kernels/shared.wasm")).arrayBuffer();
    const module = await WebAssembly.compile(kernels);
    const image = {
      ...{ data: new Float32Array(bytes.buffer), width: length, height: length },
      ...{ stride: 1, samples: 1 },
    };
    const started = async (helpers) => {
      const worker = new Worker("app/worker.js", { type: "module" });
      const ask = (action, argument) =>
        new Promise((resolve, reject) => {
          worker.onmessage = ({ data: { progress, answer, error } }) => {
            if (progress !== undefined) return;
            if (error) reject(new Error(error));
            else resolve(answer);
          };
          worker.postMessage({ id: 1, action, argument });
        });
      await ask("start", { module, shared: true, helpers, data, memoryLimit: 2 ** 30 });
      await ask("open", image);
      const part = { x: 0, y: 0, width: length, height: length };
      return () => ask("denoise", { model: name, sigma: level, part, keepSteps: false });
    };
    globalThis.runs = { 1: await started(0), 2: await started(1) };
  },
  [values, Number(side), model, Number(sigma)],
);

for await (const line of createInterface({ input: process.stdin })) {
  if (line === "load") {
    const other = await context.newPage();
    await other.goto(address);
    await other.waitForSelector("body[data-ready]");
    const entry = () => performance.getEntriesByName("ready")[0].startTime / 1000;
    console.log(await other.evaluate(entry));
    await other.close();
  } else console.log(await page.evaluate(async (n) => (await runs[n]()).seconds, line));
}
await browser.close();
