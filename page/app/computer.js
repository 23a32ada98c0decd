// The worker as the page sees it. Cancelling ends it with all that it does and holds; a new one
// starts with the same image.

const HELPERS_MOST = 8;

export class Cancelled extends Error {}

async function compiled(name) {
  const response = await fetch(new URL(`../kernels/${name}.wasm`, import.meta.url));
  if (!response.ok) throw new Error(`the kernels are missing (${response.status})`);
  return WebAssembly.compile(await response.arrayBuffer());
}

export class Computer {
  constructor(data) {
    this.data = data;
    this.shared = globalThis.crossOriginIsolated === true && typeof SharedArrayBuffer === "function";
    this.workers = 1;
    this.image = null;
    this.pending = new Map();
    this.next = 0;
    this.ready = null;
    this.stops = 0;
    this.asked = 0; // what is not answered yet, also while the worker starts
  }

  async #start() {
    const { stops } = this;
    this.module ??= await compiled(this.shared ? "shared" : "single");
    if (this.stops !== stops) throw new Cancelled();
    const cores = navigator.hardwareConcurrency || 1;
    const memory = navigator.deviceMemory ?? 4;
    this.worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data }) => this.#receive(data);
    this.worker.onerror = (event) => this.#fail(new Error(event.message || "the worker stopped"));
    const { workers } = await this.#ask("start", {
      module: this.module,
      shared: this.shared,
      helpers: Math.min(cores, HELPERS_MOST) - 1,
      data: this.data,
      memoryLimit: memory <= 2 ? 2 ** 28 : 2 ** 29,
    });
    this.workers = workers;
    if (this.image) await this.#ask("open", this.image);
  }

  #receive({ id, answer, error, fatal, progress, total }) {
    if (progress !== undefined) {
      this.onProgress?.(progress, total);
      return;
    }
    const waiting = this.pending.get(id);
    this.pending.delete(id);
    if (error) waiting?.reject(new Error(error));
    else waiting?.resolve(answer);
    if (fatal) this.stop();
  }

  #fail(error) {
    for (const { reject } of this.pending.values()) reject(error);
    this.pending.clear();
  }

  #ask(action, argument) {
    this.next += 1;
    const id = this.next;
    return new Promise((resolve, reject) => {
      this.pending.set(id, { resolve, reject });
      this.worker.postMessage({ id, action, argument });
    });
  }

  /** Ask the worker for something, and start it if there is none. */
  async ask(action, argument) {
    this.ready ??= this.#start();
    const { ready } = this;
    this.asked += 1;
    try {
      await this.#started(ready);
      return await this.#ask(action, argument);
    } finally {
      this.asked -= 1;
    }
  }

  async #started(ready) {
    try {
      await ready;
    } catch (error) {
      if (this.ready === ready) this.stop(); // what is asked next starts again
      throw error;
    }
    if (this.ready !== ready) throw new Cancelled();
  }

  async open(image) {
    if (this.busy) this.stop();
    this.image = null;
    const answer = await this.ask("open", image);
    this.image = image;
    return answer;
  }

  get busy() {
    return this.asked > 0;
  }

  /** End what is under way; what is asked next starts again. */
  stop() {
    this.stops += 1;
    this.worker?.terminate();
    this.worker = null;
    this.ready = null;
    this.#fail(new Cancelled());
  }
}
