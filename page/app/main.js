// The page: what a person does, and what is shown.

import { FileError } from "../formats/errors.js";
import { MOST_PIXELS, readImage, resultFormat, typeName, writeImage } from "../formats/files.js";
import { commandFor, pythonFor, resultName } from "./commands.js";
import { Cancelled, Computer } from "./computer.js";
import { drawEllipses } from "./ellipse.js";
import { painted, partOf, psnr, rangeOf, windowOf, withNoise } from "./pixels.js";
import { View } from "./view.js";

/** Images up to this size are denoised as a whole at once; of larger ones a part, first. */
const WHOLE_PIXELS = 1e6;
const PART_SIDE = 640;
const COMPARED_SIDE = 256;
/** Images up to this size may be tried with noise. */
const NOISY_PIXELS = 6e6;

/** Of each model: what its name stands for, in the list, and what to expect of it, below the list. */
const MODELS = {
  pm: ["Perona-Malik", "The classic, to compare with: noise stays at edges."],
  eed: ["edge-enhancing diffusion", "A classic, to compare with: smooths along edges, of one width."],
  iid: [
    "integrodifferential isotropic diffusion",
    "Sees details of many sizes; smooths the same in all directions.",
  ],
  iad: [
    "integrodifferential anisotropic diffusion",
    "Sees details of many sizes and smooths along them; only four numbers, the easiest to explain.",
  ],
  "iad-full": ["tuned for each noise level", "As iad, slightly more accurate."],
  "iad-fast": ["quick", "Nearly as accurate as the default, in less time: for large images."],
  "iad-plus": ["the default", "Accurate, and fast enough to try settings."],
  "iad-deep": ["the best result", "The most accurate, and the slowest: for the final result."],
};

const byId = (id) => document.getElementById(id);
const elements = Object.fromEntries(
  [...document.querySelectorAll("[id]")].map((element) => [element.id, element]),
);

const state = {
  opening: 0, // how often something was opened
  using: 0, // how often an image was taken to be denoised
  source: null, // as it was opened
  image: null, // what is denoised: the source, or the source with noise
  estimate: null,
  failed: false, // whether the image could not even be estimated
  sigma: null, // null: as estimated
  result: null, // { part, values, images, steps, seconds, model, sigma, level }
  step: 0,
  wanted: 0, // how often something was asked for,
  seen: 0, // of which so many times it is computed, or was cancelled
  asked: null, // { part, model, sigma } of what is being computed
  running: false,
  comparing: null, // an object for each comparison that is under way
};

const shown = (value) => String(Number(value.toPrecision(value >= 1000 ? 4 : 3)));
const megapixels = ({ width, height }) => (width * height) / 1e6;

let computer;
let data;

// ---- messages ----

function complain(error) {
  if (error instanceof Cancelled) return;
  const text = error.message || String(error);
  // Messages about files begin with their names.
  const named = error instanceof FileError;
  elements.message.textContent = named ? text : `${text[0].toUpperCase()}${text.slice(1)}.`;
  elements.message.hidden = false;
  elements.message.scrollIntoView({ block: "nearest" });
}

function say(text) {
  elements.status.textContent = text;
}

/** Whether a result is that of the settings: they may have changed since, and been cancelled. */
const isPresent = (found) =>
  Boolean(found) && found.model === elements.model.value && found.sigma === state.sigma;

function sayCancelled() {
  const { result } = state;
  if (!result) say("Cancelled. The image is not denoised yet.");
  else if (isPresent(result)) say("Cancelled.");
  else
    say(
      `Cancelled. The image shown is still that of ${result.model} at noise level ${shown(result.level)}, ` +
        "not of these settings.",
    );
}

function setRunning(running, text, { canStop = true } = {}) {
  state.running = running;
  elements.running.hidden = !running;
  elements.cancel.hidden = !canStop;
  if (running) {
    elements.progress.value = 0;
    say(text);
  }
}

// ---- opening ----

async function bytesOf(name, read) {
  try {
    return new Uint8Array(await read());
  } catch (error) {
    throw new FileError(`${name} cannot be read: ${error.message.replace(/\.$/, "")}.`);
  }
}

/** Open the image whose bytes `read` returns, unless another one is opened meanwhile. */
async function openImage(name, read) {
  state.opening += 1;
  const { opening } = state;
  elements.message.hidden = true;
  let image;
  try {
    image = await readImage(name, await bytesOf(name, read));
  } catch (error) {
    if (state.opening === opening) complain(error);
    return;
  }
  if (state.opening !== opening) return;
  state.source = image;
  state.sigma = null;
  elements.added.value = 0;
  const wasOpening = elements.open.contains(document.activeElement);
  elements.main.dataset.state = "loaded";
  elements.work.hidden = false;
  // What had the focus is no longer there.
  if (wasOpening) elements.canvas.focus({ preventScroll: true });
  elements.psnr.hidden = true;
  forgetWhy();
  elements.added.disabled = image.width * image.height > NOISY_PIXELS;
  document.title = `${name} – integrodiff`;
  await use(image);
}

/** Return a function that says whether another image has taken the place of the present one. */
function gone() {
  const { using } = state;
  return () => state.using !== using;
}

/** Denoise an image: the source, or the source with noise. */
async function use(image, { keepView = false } = {}) {
  if (computer.busy) computer.stop();
  state.using += 1;
  state.seen = state.wanted; // nothing more of the image before
  const isGone = gone();
  state.image = image;
  state.result = null;
  state.estimate = null;
  state.failed = false;
  elements.message.hidden = true;
  state.window = windowOf(state.source);
  state.range = rangeOf(state.source);
  const before = painted(image, state.window);
  const whole = { x: 0, y: 0, width: image.width, height: image.height };
  state.isLarge = image.width * image.height > WHOLE_PIXELS;
  if (keepView) {
    view.layers = { before, after: null, noise: null };
    view.draw();
  } else {
    view.open(before, whole);
    if (state.isLarge) view.fit(partAround(view.centre));
  }
  forgetCompared();
  elements.whole.hidden = true;
  showAbout();
  showSettings();
  showSteps();
  elements["sigma-value"].textContent = "…";
  elements["sigma-hint"].textContent = "";
  // Without an estimate nothing could go on.
  setRunning(true, "Estimating the noise…", { canStop: false });
  try {
    state.estimate = await computer.open({
      data: image.data,
      width: image.width,
      height: image.height,
      stride: image.stride,
      samples: image.samples,
    });
  } catch (error) {
    if (isGone()) return;
    state.failed = true;
    setRunning(false);
    say("");
    complain(error);
    return;
  }
  if (isGone()) return;
  setRunning(false);
  if (!state.estimate && state.sigma === null) state.sigma = Number(shown(state.range * 0.05));
  showSettings();
  await update();
}

function showAbout() {
  const { image } = state;
  const colours = { 1: "grey", 3: "colour" }[image.samples];
  const about = `${image.width} × ${image.height} pixels, ${colours}, ${typeName(image.data)}`;
  const strong = document.createElement("strong");
  strong.textContent = image.name;
  elements.about.replaceChildren(strong, about);
}

// ---- the noise level ----

const levelEnds = () => {
  const estimate = state.estimate?.sigma || state.range * 0.05;
  return [Math.min(state.range * 0.001, estimate / 2), state.range * 0.5];
};

function showSettings() {
  const { estimate } = state;
  const level = state.sigma ?? estimate?.sigma ?? 0;
  const [low, high] = levelEnds();
  if (level > 0)
    elements.sigma.value = Math.round((1000 * Math.log(level / low)) / Math.log(high / low));
  else elements.sigma.value = 0;
  elements["sigma-value"].textContent = shown(level);
  elements.sigma.setAttribute("aria-valuetext", `${shown(level)} grey levels`);
  elements["sigma-auto"].hidden = state.sigma === null || !estimate;
  let hint = "";
  if (!estimate) hint = state.image.width < 20 || state.image.height < 20 ? "Too small to estimate." : "";
  else if (state.sigma !== null) hint = `Estimated: ${shown(estimate.sigma)}`;
  else if (estimate.sigma === 0) hint = "No noise was found.";
  else if (estimate.doubtful)
    hint = "A doubtful estimate: no part of the image is flat. Set the level yourself.";
  else if (estimate.correlated) hint = "Estimated; the noise is correlated between pixels.";
  else hint = "Estimated from the image.";
  elements["sigma-hint"].textContent = hint;
  elements["model-hint"].textContent = MODELS[elements.model.value]?.[1] ?? "";
  const settings = { model: elements.model.value, defaultModel: data.defaultModel, sigma: state.sigma };
  elements.command.textContent = commandFor(state.image, settings);
  elements.python.textContent = pythonFor(state.image, settings);
  const format = resultFormat(state.image).toUpperCase();
  const type = typeName(state.image.data);
  elements["download-hint"].textContent = `${resultName(state.image)}: ${format}, ${type}`;
  const isNoisy = state.image !== state.source;
  elements["download-noisy"].hidden = !isNoisy;
  const added = Number(elements.added.value);
  elements["added-value"].textContent = added
    ? shown((added * state.range) / 255)
    : elements.added.disabled
      ? "for smaller images"
      : "none";
}

// ---- denoising ----

/** Return the part around a place that is denoised first, if an image is large. */
function partAround({ x, y }) {
  const { width, height } = state.image;
  if (!state.isLarge) return { x: 0, y: 0, width, height };
  const [w, h] = [Math.min(PART_SIDE, width), Math.min(PART_SIDE, height)];
  const clip = (value, most) => Math.round(Math.min(Math.max(value, 0), most));
  return { x: clip(x - w / 2, width - w), y: clip(y - h / 2, height - h), width: w, height: h };
}

const isWhole = (part) => part.width === state.image.width && part.height === state.image.height;

/**
 * Denoise with the present settings, `part` of the image or what is seen of it. Resolves when nothing
 * is left to do; what was asked for meanwhile is done last.
 */
function update(part = null) {
  if (state.failed) return use(state.image, { keepView: true });
  state.wanted += 1;
  state.wantedPart = part;
  // A short run is not worth ending: its worker would have to start again.
  if (state.asked && state.isLarge && isWhole(state.asked.part)) computer.stop();
  state.updating ??= updates().finally(() => {
    state.updating = null;
  });
  return state.updating;
}

async function updates() {
  do {
    state.seen = state.wanted;
    await run(state.wantedPart ?? partAround(view.centre));
  } while (state.wanted !== state.seen);
}

/** End what is under way, and forget what was asked for meanwhile. */
function cancel() {
  state.seen = state.wanted;
  const isComparing = state.comparing && !state.updating;
  endComparing();
  computer.stop();
  if (isComparing) sayCancelled();
}

async function run(part) {
  const isGone = gone();
  const model = elements.model.value;
  const { sigma } = state;
  const isAll = isWhole(part);
  const steps = data.models.find(({ name }) => name === model).settings.steps;
  setRunning(true, isAll && state.isLarge ? "Denoising the whole image…" : "Denoising…");
  state.asked = { part, model, sigma };
  const keepSteps = !(isAll && state.isLarge);
  try {
    const found = await computer.ask("denoise", { model, sigma, part, keepSteps });
    if (isGone()) return;
    const level = sigma ?? state.estimate.sigma;
    state.result = { ...found, part, model, sigma, level, values: found.result };
    state.result.steps = keepSteps ? steps : 1;
    state.step = state.result.steps;
    setRunning(false);
    showResult();
  } catch (error) {
    if (isGone()) return;
    setRunning(false);
    if (error instanceof Cancelled) {
      if (state.wanted !== state.seen) return; // it goes on with other settings
      sayCancelled();
      // The button that had the focus is no longer there.
      if ([document.body, elements.cancel].includes(document.activeElement)) elements.sigma.focus();
    } else {
      say("");
      complain(error);
    }
  } finally {
    state.asked = null;
  }
}

/** Return the values after some steps; before the first one they are those of the image. */
function valuesAt(step) {
  const { result } = state;
  if (step >= result.steps) return result.values;
  if (step > 0) return result.images[step - 1];
  return partOf(state.image, result.part);
}

function showResult() {
  const { result, image } = state;
  const { part } = result;
  const whole = isWhole(part);
  view.part = part;
  showStep(state.step);
  showSteps();
  const workers = computer.workers > 1 ? `${computer.workers} workers` : "one worker";
  const what = whole ? "Denoised" : `Denoised ${part.width} × ${part.height} pixels of it`;
  say(`${what} in ${result.seconds.toFixed(result.seconds < 10 ? 2 : 0)} s by ${workers}.`);
  elements.whole.hidden = whole;
  elements.whole.textContent = `Denoise all ${shown(Math.round(10 * megapixels(image)) / 10)} megapixels`;
  elements.canvas.setAttribute("aria-label", `${image.name} before and after denoising`);
  explainAgain();
  document.body.dataset.done = String(Number(document.body.dataset.done ?? 0) + 1);
}

function showStep(step) {
  state.step = step;
  const { result, image } = state;
  const values = valuesAt(step);
  const layer = { data: values, stride: image.samples, samples: image.samples, ...result.part };
  view.layers.after = painted(layer, state.window);
  view.layers.noise = null;
  showNoise();
  view.draw();
  showTags();
  showError(values);
}

/** Removed values that are black, with a minus, and white. */
function noiseReach() {
  const level = state.result?.level ?? 0;
  return 3 * (level || state.range / 50);
}

/** Paint the removed noise, once it is to be seen. */
function showNoise() {
  const { result, image } = state;
  if (!result || view.mode !== "noise" || view.layers.noise) return;
  const { samples } = image;
  const reach = noiseReach();
  const before = isWhole(result.part)
    ? image
    : { data: partOf(image, result.part), stride: samples, samples, ...result.part };
  view.layers.noise = painted(before, [-reach, reach], valuesAt(state.step));
}

function showTags() {
  const step = state.result && state.step < state.result.steps ? `step ${state.step}` : "after";
  const mode = view.mode;
  const reach = state.image ? shown(noiseReach()) : "";
  elements["tag-left"].textContent = mode === "split" ? "before" : "";
  elements["tag-right"].textContent = mode === "noise" ? `removed noise, −${reach} to ${reach}` : step;
  elements["split-row"].hidden = mode !== "split";
}

function showSteps() {
  const { result } = state;
  elements["step-row"].hidden = !result || result.steps < 2;
  if (!result) return;
  elements.step.max = result.steps;
  elements.step.value = state.step;
  const text = `${state.step} of ${result.steps}`;
  elements["step-value"].textContent = text;
  elements.step.setAttribute("aria-valuetext", text);
}

function showError(values) {
  const { source, image, result } = state;
  elements.psnr.hidden = image === source;
  if (image === source) return;
  const clean = partOf(source, result.part);
  const noisy = psnr(clean, partOf(image, result.part), state.range);
  const now = psnr(clean, values, state.range);
  elements.psnr.textContent = `PSNR ${noisy.toFixed(2)} dB with noise, ${now.toFixed(2)} dB denoised`;
}

// ---- why ----

async function explain(place) {
  const { result } = state;
  if (!result || state.running) return;
  const { part } = result;
  const [x, y] = [Math.round(place.x) - part.x, Math.round(place.y) - part.y];
  if (x < 0 || y < 0 || x > part.width || y > part.height) return;
  const mark = { x: x + part.x, y: y + part.y };
  view.mark = mark;
  view.draw();
  elements.why.open = true;
  const step = Math.min(state.step, result.steps - 1);
  const values = valuesAt(result.images.length ? step : 0);
  const { width, height } = part;
  const question = { model: result.model, sigma: result.sigma, values, part: { width, height }, x, y, step };
  try {
    const found = await computer.ask("explain", question);
    if (view.mark !== mark) return;
    if (found) showWhy(found, mark, step);
    else forgetWhy();
  } catch (error) {
    if (view.mark === mark) complain(error);
  }
}

/** Explain the same place again, after something else was computed or is shown. */
function explainAgain() {
  const { mark, part } = view;
  if (!mark) return;
  const [x, y] = [mark.x - part.x, mark.y - part.y];
  const isInside = x >= 0 && y >= 0 && x <= part.width && y <= part.height;
  if (elements.why.open && isInside) explain(mark);
  else forgetWhy();
}

function forgetWhy() {
  view.mark = null;
  view.draw();
  elements["why-content"].hidden = true;
  elements["why-hint"].hidden = false;
  elements["to-why"].hidden = true;
}

function showWhy(found, mark, step) {
  elements["why-content"].hidden = false;
  elements["why-hint"].hidden = true;
  elements["to-why"].hidden = false;
  drawEllipses(elements.ellipse, found);
  const [larger, smaller] = [found.larger, found.smaller].map((mu) => Math.sqrt(mu) / found.factor);
  const sum = found.larger + found.smaller;
  const coherence = sum > 0 ? (found.larger - found.smaller) / sum : 0;
  const degrees = Math.round(((((found.angle + Math.PI / 2) * 180) / Math.PI) % 180 + 180) % 180);
  elements["why-text"].textContent =
    `At column ${mark.x}, row ${mark.y}, before step ${step + 1}: gradient ${shown(larger)} across and ` +
    `${shown(smaller)} along, in grey levels per pixel over all scales. ` +
    (coherence > 0.3
      ? `Structure runs at ${degrees}° to the row; smoothing follows it.`
      : "No direction prevails; smoothing is about the same in all.");
  const rows = found.scales.map(({ scale, contrast, across, along }) => {
    const row = document.createElement("tr");
    const cells = [
      `${shown(scale)} px`,
      shown(contrast / found.factor),
      across.toFixed(2),
      along.toFixed(2),
    ];
    for (const text of cells) row.appendChild(document.createElement("td")).textContent = text;
    return row;
  });
  elements["why-rows"].replaceChildren(...rows);
}

// ---- comparing models ----

async function compare() {
  if (state.running || state.comparing) return;
  if (state.failed) await update();
  if (state.failed) return;
  const { image } = state;
  const side = { width: Math.min(COMPARED_SIDE, image.width), height: Math.min(COMPARED_SIDE, image.height) };
  const part = {
    x: Math.round(Math.min(Math.max(view.centre.x - side.width / 2, 0), image.width - side.width)),
    y: Math.round(Math.min(Math.max(view.centre.y - side.height / 2, 0), image.height - side.height)),
    ...side,
  };
  const { sigma } = state;
  const clean = image === state.source ? null : partOf(state.source, part);
  elements.compared.replaceChildren();
  const comparing = {};
  state.comparing = comparing;
  const isOver = () => state.comparing !== comparing;
  try {
    for (const { name } of data.models) {
      await state.updating; // what was asked for meanwhile goes first
      if (isOver()) return;
      setRunning(true, "Comparing models…");
      const found = await computer.ask("denoise", { model: name, sigma, part, keepSteps: false });
      if (isOver()) return;
      addCompared(name, found, part, clean);
    }
    endComparing("Compared all models.");
  } catch (error) {
    if (isOver()) return;
    endComparing();
    complain(error);
  }
}

/** Compare no further; what else is under way goes on, and says so itself. */
function endComparing(text = "") {
  if (!state.comparing) return;
  state.comparing = null;
  if (state.updating) return;
  setRunning(false);
  say(text);
}

/** Forget what was compared, of another image or another level. */
function forgetCompared() {
  endComparing();
  elements.compared.replaceChildren();
}

function addCompared(name, found, part, clean) {
  const { samples } = state.image;
  const layer = painted({ data: found.result, stride: samples, samples, ...part }, state.window);
  const item = document.createElement("div");
  item.setAttribute("role", "listitem");
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-pressed", String(name === elements.model.value));
  const canvas = document.createElement("canvas");
  canvas.width = part.width;
  canvas.height = part.height;
  canvas.setAttribute("aria-hidden", "true");
  canvas.getContext("2d").drawImage(layer, 0, 0);
  const title = document.createElement("strong");
  title.textContent = name;
  const note = clean
    ? `${psnr(clean, found.result, state.range).toFixed(2)} dB`
    : `${(found.seconds * 1000).toFixed(0)} ms`;
  button.append(canvas, title, ` ${note}`);
  button.addEventListener("click", () => {
    elements.model.value = name;
    for (const other of elements.compared.querySelectorAll("button"))
      other.setAttribute("aria-pressed", String(other === button));
    showSettings();
    update();
  });
  item.append(button);
  elements.compared.append(item);
}

// ---- files out ----

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

async function download() {
  const { image } = state;
  const whole = { x: 0, y: 0, width: image.width, height: image.height };
  const isWanted = (found) => isPresent(found) && isWhole(found.part);
  if (!isWanted(state.result)) await (isWanted(state.asked) ? state.updating : update(whole));
  const { result } = state;
  if (state.image !== image || !isWanted(result)) return;
  const file = await writeImage(image, result.values, "denoised");
  save(file.name, file.blob);
  say(`Saved ${file.name}.`);
}

async function downloadNoisy() {
  const { image } = state;
  const file = await writeImage({ ...image, name: "x" }, image.data, "y");
  save(image.name, file.blob);
}

async function copy(id, button) {
  const text = elements[id].textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(elements[id]);
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

// ---- wiring ----

const view = new View(elements.canvas, {
  onPick: async (place) => {
    await explain(place);
    // Beside the image it may be out of sight; below the image, the image would be.
    if (matchMedia("(min-width: 861px)").matches) elements.why.scrollIntoView({ block: "nearest" });
  },
  onSplit: divide,
  onMoved() {
    clearTimeout(view.timer);
    if (!state.isLarge || !state.result || isWhole(state.result.part)) return;
    view.timer = setTimeout(() => {
      const { part } = state.result;
      const { x, y } = view.centre;
      const inside =
        Math.abs(x - part.x - part.width / 2) < part.width / 4 &&
        Math.abs(y - part.y - part.height / 2) < part.height / 4;
      const next = partAround(view.centre);
      if (!inside && (next.x !== part.x || next.y !== part.y) && !state.running) update();
    }, 350);
  },
});

/** Put the divider at a place from 0, the left, to 1. */
function divide(place) {
  view.split = Math.min(Math.max(place, 0), 1);
  const percent = Math.round(100 * view.split);
  elements.split.value = percent;
  elements.split.setAttribute("aria-valuetext", `${percent} percent before`);
  view.draw();
}

function listen() {
  const on = (id, event, action) => elements[id].addEventListener(event, action);
  on("file", "change", async () => {
    const [file] = elements.file.files;
    elements.file.value = "";
    if (file) await openFile(file);
  });
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dragging");
  });
  addEventListener("drop", async (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    const [file] = event.dataTransfer.files;
    if (file) await openFile(file);
  });
  addEventListener("paste", async (event) => {
    const [file] = event.clipboardData.files;
    if (file) await openFile(file);
  });
  for (const id of ["choose", "another"]) on(id, "click", () => elements.file.click());
  on("back", "click", () => {
    // The image stays below, until another one is opened.
    elements.main.dataset.state = "empty";
    elements.open.scrollIntoView({ block: "nearest" });
    elements.choose.focus({ preventScroll: true });
  });
  on("model", "change", () => {
    showSettings();
    update();
  });
  let timer;
  on("sigma", "input", () => {
    const [low, high] = levelEnds();
    const level = low * (high / low) ** (elements.sigma.value / 1000);
    state.sigma = elements.sigma.value === "0" ? 0 : Number(shown(level));
    elements["sigma-value"].textContent = shown(state.sigma);
    forgetCompared();
    clearTimeout(timer);
    timer = setTimeout(() => {
      showSettings();
      update();
    }, 150);
  });
  on("sigma-auto", "click", () => {
    state.sigma = null;
    forgetCompared();
    showSettings();
    update();
    elements.sigma.focus();
  });
  on("cancel", "click", cancel);
  on("whole", "click", () =>
    update({ x: 0, y: 0, width: state.image.width, height: state.image.height }),
  );
  on("split", "input", () => divide(elements.split.value / 100));
  on("step", "input", () => {
    showStep(Number(elements.step.value));
    showSteps();
  });
  on("step", "change", explainAgain);
  for (const input of document.querySelectorAll("input[name=show]"))
    input.addEventListener("change", () => {
      view.mode = input.value;
      showNoise();
      showTags();
      view.draw();
    });
  on("go-to-why", "click", () => {
    elements.why.open = true;
    elements.why.scrollIntoView({ block: "start" });
    elements.why.querySelector("summary").focus({ preventScroll: true });
  });
  on("zoom-in", "click", () => view.zoom(1.25));
  on("zoom-out", "click", () => view.zoom(0.8));
  on("zoom-fit", "click", () => view.fit());
  on("zoom-one", "click", () => view.zoom(1 / (globalThis.devicePixelRatio || 1) / view.scale));
  on("download", "click", () => download().catch(complain));
  on("download-noisy", "click", () => downloadNoisy().catch(complain));
  on("compare-run", "click", compare);
  for (const button of document.querySelectorAll("[data-copy]"))
    button.addEventListener("click", () => copy(button.dataset.copy, button));
  on("added", "input", () => {
    const added = Number(elements.added.value);
    elements["added-value"].textContent = added ? shown((added * state.range) / 255) : "none";
  });
  on("added", "change", () => {
    const added = Number(elements.added.value);
    state.sigma = null;
    const { source, range } = state;
    use(added ? withNoise(source, (added * range) / 255) : source, { keepView: true }).catch(complain);
  });
}

function openFile(file) {
  return openImage(file.name, () => {
    if (file.size > 8 * MOST_PIXELS)
      throw new Error(`its ${Math.round(file.size / 1e6)} MB are too much for this page`);
    return file.arrayBuffer();
  });
}

async function fetched(name) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`the server answers ${response.status} for ${name}`);
  return response;
}

async function showSamples() {
  const samples = await (await fetched("samples/samples.json")).json();
  for (const { file, title, about, thumbnail } of samples) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.sample = file;
    const picture = document.createElement("img");
    picture.src = `samples/${thumbnail}`;
    picture.alt = "";
    const strong = document.createElement("strong");
    strong.textContent = title;
    button.append(picture, strong, about);
    button.addEventListener("click", () =>
      openImage(file, async () => (await fetched(`samples/${file}`)).arrayBuffer()),
    );
    byId("samples").append(button);
  }
}

async function begin() {
  const [models, constants] = await Promise.all(
    ["models", "constants"].map(async (name) => (await fetched(`data/${name}.json`)).json()),
  );
  data = models;
  for (const { name } of data.models) {
    const option = document.createElement("option");
    option.value = name;
    option.textContent = name in MODELS ? `${name} – ${MODELS[name][0]}` : name;
    option.selected = name === data.defaultModel;
    elements.model.append(option);
  }
  computer = new Computer({ models: data.models, constants });
  computer.onProgress = (done, total) => {
    elements.progress.value = done / total;
  };
  listen();
  const workers = computer.shared
    ? "on all processors"
    : "on one processor; where the page is isolated from other sites it could use all";
  elements.machine.textContent = `integrodiff ${data.version}. Computes in this browser, ${workers}.`;
  document.body.dataset.ready = "yes";
  performance.mark("ready");
  await showSamples().catch(complain);
  if ("serviceWorker" in navigator && location.protocol.startsWith("http"))
    navigator.serviceWorker.register("service-worker.js").catch(() => {});
}

begin().catch(complain);
