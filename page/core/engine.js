// The compiled steps: native/bindings/wasm.cpp in one worker, or in several that share its memory.

import { DOUBLE_PRECISION, SINGLE_PRECISION, discreteGaussian, increments } from "./gaussian.js";

const PAGE = 65536;
const MOST_PAGES = 65536;
const HELPER_STACK = 262144;

/** Bytes of a run for each pixel of a plane, from above; see ExactRun::take_memory(). */
export function bytesPerPixel(evolution, channels) {
  const coupling = Math.max(
    ...evolution.schedule.map((terms) =>
      terms.reduce((sum, term) => sum + (term.order === 1 || term.tensor ? 4 : 1), 0),
    ),
  );
  const pulled = evolution.pulls.some((pull) => pull !== 0) ? 1 : 0;
  const planes = channels * (3 + pulled + evolution.scales.length) + coupling + 3 + 2;
  return 4 * planes;
}

/** Return the numbers of a process in the order in which wasm.cpp reads them. */
function described(evolution) {
  const list = (values) => [values.length, ...values];
  const { scales, schedule, pulls, tau, theta } = evolution;
  const taps = increments(scales).map((width) => discreteGaussian(width, SINGLE_PRECISION));
  const terms = schedule.map((entry) => [
    entry.length,
    ...entry.flatMap((term) => [
      term.order,
      term.tensor ? 1 : 0,
      term.mix,
      ...term.couplingWeights,
      ...term.fluxWeights,
      ...term.contrasts,
      ...list(
        term.integrationScale ? discreteGaussian(term.integrationScale, DOUBLE_PRECISION) : [],
      ),
    ]),
  ]);
  const cells = 1;
  return Float64Array.from(
    [theta, cells, tau, list(pulls), scales.length, taps.map(list), schedule.length, terms].flat(2),
  );
}

export class Engine {
  /** `module` is compiled for shared memory if there is to be any helper, and else for its own. */
  constructor(module, { shared }) {
    this.module = module;
    this.memory = new WebAssembly.Memory({ initial: 16, maximum: MOST_PAGES, shared });
    this.exports = new WebAssembly.Instance(module, { env: { memory: this.memory } }).exports;
    this.exports.__wasm_call_ctors();
    this.helpers = 0;
  }

  /** What a further worker needs to help: it posts nothing back, and calls `serve`. */
  invitation() {
    this.helpers += 1;
    const stack = this.exports.take(HELPER_STACK) + HELPER_STACK;
    return { module: this.module, memory: this.memory, stack, worker: this.helpers };
  }

  /** How many of the invited help from now on. */
  useHelpers(count) {
    this.exports.set_helpers?.(count);
  }

  /** Start an image, given as planes on the scale of the model one after the other. */
  begin(evolution, planes, channels, height, width) {
    const { take, begin, give_back: giveBack } = this.exports;
    const numbers = described(evolution);
    const description = take(numbers.byteLength);
    const image = take(planes.byteLength);
    new Float64Array(this.memory.buffer, description, numbers.length).set(numbers);
    new Float32Array(this.memory.buffer, image, planes.length).set(planes);
    const job = begin(description, image, channels, height, width);
    giveBack(description);
    return new Run(this, job, image, planes.length, evolution.steps);
  }

  get bytes() {
    return this.memory.buffer.byteLength;
  }
}

class Run {
  constructor(engine, job, image, count, steps) {
    Object.assign(this, { engine, job, image, count, steps, step: 0 });
  }

  advance() {
    this.engine.exports.advance(this.job, this.step);
    this.step += 1;
  }

  /** Return a copy of the planes as they are now. */
  read() {
    this.engine.exports.read(this.job, this.image);
    return new Float32Array(this.engine.memory.buffer, this.image, this.count).slice();
  }

  finish() {
    this.engine.exports.finish(this.job);
    this.engine.exports.give_back(this.image);
  }
}

/** Serve as a helper; does not return. `ready` is called before. */
export function serve({ module, memory, stack, worker }, ready) {
  const { exports } = new WebAssembly.Instance(module, { env: { memory } });
  exports.__stack_pointer.value = stack;
  ready();
  exports.serve(worker);
}

export { PAGE };
