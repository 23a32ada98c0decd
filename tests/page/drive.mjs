// Drive the page in Chromium as a person would: node drive.mjs DIST SCENARIO ADDRESS ...
// Prints what was seen as JSON, for tests/page/test_browser.py to judge.

import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [dist, scenario, address, ...given] = process.argv.slice(2);
const { launch } = await import(pathToFileURL(`${dist}/../browser.mjs`));
const PATIENCE = 1000 * Number(process.env.PATIENCE ?? 120); // milliseconds for anything that is waited for

const browser = await launch();
const errors = [];
const requests = [];

async function open(options = {}) {
  const context = await browser.newContext({ acceptDownloads: true, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error") errors.push(message.text());
  });
  page.on("request", (request) => requests.push(request.url()));
  await page.goto(address);
  await page.waitForSelector("body[data-ready]");
  return page;
}

const results = async (page) => Number((await page.getAttribute("body", "data-done")) ?? 0);
const text = (page, selector) => page.textContent(selector);

/** Do something, and wait until it has led to a new result. */
async function andWait(page, act) {
  const before = await results(page);
  await act();
  await page.waitForFunction((n) => Number(document.body.dataset.done ?? 0) > n, before);
}

const choose = (page, file) => andWait(page, () => page.setInputFiles("#file", file));

async function download(page, selector, target) {
  const [file] = await Promise.all([page.waitForEvent("download"), page.click(selector)]);
  await file.saveAs(target);
  return file.suggestedFilename();
}

const facts = async (page) => ({
  about: await text(page, "#about"),
  sigma: await text(page, "#sigma-value"),
  hint: await text(page, "#sigma-hint"),
  command: await text(page, "#command"),
  python: await text(page, "#python"),
  status: await text(page, "#status"),
  isolated: await page.evaluate(() => crossOriginIsolated),
});

const scenarios = {
  // Open a file, take the settings as they are, or those given, and download the result.
  async denoise(file, target, model = "", key = "", presses = "0", options = "{}") {
    const page = await open(JSON.parse(options));
    await choose(page, file);
    if (model) await andWait(page, () => page.selectOption("#model", model));
    if (key)
      await andWait(page, async () => {
        await page.focus("#sigma");
        for (let k = 0; k < Number(presses); k += 1) await page.keyboard.press(key);
      });
    const seen = await facts(page);
    return { ...seen, name: await download(page, "#download", target) };
  },

  // Add noise to a clean image, and download both.
  async noise(file, noisy, target) {
    const page = await open();
    await choose(page, file);
    await page.click("#try summary");
    await andWait(page, () => page.locator("#added").fill("30"));
    const psnr = await text(page, "#psnr");
    const seen = await facts(page);
    const name = await download(page, "#download-noisy", noisy);
    await download(page, "#download", target);
    await page.locator("#step").fill("0");
    const atStart = await text(page, "#psnr");
    return { ...seen, psnr, atStart, name };
  },

  // A photograph of many pixels: a part first, then everything, which is cancelled.
  async large(file) {
    const page = await open();
    await choose(page, file);
    const seen = await facts(page);
    const button = await text(page, "#whole");
    await page.click("#whole");
    await page.waitForFunction(() => document.querySelector("#progress").value > 0);
    const running = await text(page, "#status");
    await page.click("#cancel");
    await page.waitForFunction(() => document.querySelector("#status").textContent === "Cancelled.");
    const hidden = await page.isHidden("#running");
    // And everything goes on as before, elsewhere in the image.
    await andWait(page, async () => {
      await page.focus("#canvas");
      for (let k = 0; k < 12; k += 1) await page.keyboard.press("ArrowRight");
    });
    await andWait(page, () => page.selectOption("#model", "pm"));
    const after = await text(page, "#status");
    // Where nothing was computed there is no removed noise to be seen.
    await page.click('input[value="noise"] + span');
    await page.click("#zoom-fit");
    await page.waitForTimeout(200);
    const outside = await page.evaluate(() => {
      const { width, height } = document.querySelector("#canvas");
      const left = (width - Math.min(width, 1.5 * height)) / 2;
      const context = document.querySelector("#canvas").getContext("2d");
      return [0.1, 0.3, 0.7].map((y) => [...context.getImageData(left + 9, y * height, 1, 1).data].join());
    });
    // The slowest model, cancelled: what is shown is that of the one before.
    await page.selectOption("#model", "iad-deep");
    await page.click("#cancel");
    await page.waitForFunction(() => document.querySelector("#status").textContent.startsWith("Cancelled"));
    const cancelled = await text(page, "#status");
    return { ...seen, button, running, hidden, after, outside, cancelled };
  },

  // An image of which a part is denoised first: downloading denoises all of it.
  async whole(file, target) {
    const page = await open();
    await choose(page, file);
    const first = await text(page, "#status");
    const name = await download(page, "#download", target);
    return { ...(await facts(page)), first, name };
  },

  // Files that cannot be read, one after the other, and then one that can.
  async refused(good, ...files) {
    const page = await open();
    const messages = [];
    for (const file of files) {
      await page.setInputFiles("#file", file);
      const name = file.split("/").at(-1);
      await page.waitForFunction(
        (n) => document.querySelector("#message").textContent.toLowerCase().includes(n.toLowerCase()),
        name,
      );
      messages.push(await text(page, "#message"));
    }
    await choose(page, good);
    return { messages, hidden: await page.isHidden("#message") };
  },

  // A sample whose bytes come late, after a file that was opened later; and files that cannot be read.
  async late(file) {
    const page = await open({ serviceWorkers: "block" });
    let release;
    const held = new Promise((resolve) => (release = resolve));
    await page.route("**/samples/phantom.tif", async (route) => {
      await held;
      await route.continue();
    });
    await page.route("**/samples/fibres.tif", (route) => route.fulfill({ status: 404 }));
    const arrived = page.waitForResponse("**/samples/phantom.tif");
    await page.click('[data-sample="phantom.tif"]');
    await choose(page, file);
    release();
    await (await arrived).finished();
    await page.waitForTimeout(500);
    const about = await text(page, "#about");
    const message = async (act) => {
      await act();
      await page.waitForSelector("#message:not([hidden])");
      return text(page, "#message");
    };
    await page.click("#back");
    const missing = await message(() => page.click('[data-sample="fibres.tif"]'));
    await page.evaluate(() => {
      document.querySelector("#message").hidden = true;
      File.prototype.arrayBuffer = () => Promise.reject(new Error("it was removed"));
    });
    const removed = await message(() => page.setInputFiles("#file", file));
    return { about, missing, removed };
  },

  // Kernels that the server does not give at first.
  async restarted(file) {
    const page = await open({ serviceWorkers: "block" });
    const kernels = "**/kernels/*.wasm";
    await page.route(kernels, (route) => route.fulfill({ status: 503 }));
    await page.setInputFiles("#file", file);
    await page.waitForSelector("#message:not([hidden])");
    const message = await text(page, "#message");
    await page.unroute(kernels);
    await andWait(page, () => page.selectOption("#model", "pm"));
    return { ...(await facts(page)), message, hidden: await page.isHidden("#message") };
  },

  // Another model, and then another image, while everything of a large image is denoised.
  async replaced(large, next) {
    const page = await open();
    await choose(page, large);
    await page.evaluate(() => {
      const status = document.querySelector("#status");
      window.said = [];
      new MutationObserver(() =>
        window.said.push([status.textContent, document.querySelector("#whole").hidden]),
      ).observe(status, { childList: true });
    });
    const all = async () => {
      await page.click("#whole");
      await page.waitForFunction(() => document.querySelector("#progress").value > 0);
    };
    await all();
    await andWait(page, () => page.selectOption("#model", "iad-deep"));
    await all();
    await choose(page, next);
    return { ...(await facts(page)), said: await page.evaluate(() => window.said) };
  },

  // Another noise level while models are compared.
  async levels(file) {
    const page = await open();
    await choose(page, file);
    await page.click("#compare summary");
    await page.click("#compare-run");
    await page.waitForSelector("#compared button");
    await andWait(page, async () => {
      await page.focus("#sigma");
      await page.keyboard.press("ArrowRight");
    });
    await page.waitForTimeout(1500);
    const compared = await page.locator("#compared button").count();
    return { ...(await facts(page)), compared };
  },

  // A newer version on the server while the page is open, and after it was closed.
  async upgraded(folder) {
    const page = await open();
    await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
    for (const [file, old, newer] of [
      ["service-worker.js", /const VERSION = "/, 'const VERSION = "newer-'],
      ["index.html", /<title>.*<\/title>/, "<title>a newer version</title>"],
    ])
      writeFileSync(`${folder}/${file}`, readFileSync(`${folder}/${file}`, "utf8").replace(old, newer));
    const installed = await page.evaluate(async () => {
      const registration = await navigator.serviceWorker.getRegistration();
      await registration.update();
      const worker = registration.installing ?? registration.waiting;
      while (worker.state === "installing")
        await new Promise((resolve) => worker.addEventListener("statechange", resolve, { once: true }));
      return worker.state !== "redundant";
    });
    await page.waitForTimeout(500); // in which it must not take over
    const before = await page.evaluate(async () => (await fetch("index.html")).text());
    const context = page.context();
    await page.close();
    let after = "";
    for (let k = 0; k < 20 && !after.includes("newer"); k += 1) {
      const next = await context.newPage();
      await next.goto(address);
      after = await next.title();
      await next.close();
    }
    return { installed, before, after };
  },

  // The ways to open a file other than by its field: by a button, dropped, and pasted.
  async given(...files) {
    const page = await open();
    const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.click("#choose")]);
    await andWait(page, () => chooser.setFiles(files[0]));
    const opened = [await text(page, "#about")];
    for (const [kind, file] of [["drop", files[1]], ["paste", files[2]]]) {
      const data = readFileSync(file).toString("base64");
      await andWait(page, () =>
        page.evaluate(
          ([event, encoded]) => {
            const bytes = Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], `${event}.png`, { type: "image/png" }));
            const options = { bubbles: true, cancelable: true };
            document.body.dispatchEvent(
              event === "drop"
                ? new DragEvent("drop", { ...options, dataTransfer: transfer })
                : new ClipboardEvent("paste", { ...options, clipboardData: transfer }),
            );
          },
          [kind, data],
        ),
      );
      opened.push(await text(page, "#about"));
    }
    return { opened };
  },

  // All controls, on a sample.
  async controls() {
    const page = await open({ viewport: { width: 1200, height: 800 }, permissions: ["clipboard-read", "clipboard-write"] });
    // From here on, so that the browser knows of it when the key is pressed.
    const chooserOpened = page.waitForEvent("filechooser");
    await page.waitForSelector("[data-sample]");
    // By the keyboard.
    await page.focus('[data-sample="clean.png"]');
    await andWait(page, () => page.keyboard.press("Enter"));
    const focused = await page.evaluate(() => document.activeElement.id);
    await page.focus("#another");
    await page.keyboard.press("Enter");
    const chooser = await chooserOpened;
    const several = chooser.isMultiple();
    const picture = () =>
      page.evaluate(
        () =>
          new Promise((resolve) => {
            requestAnimationFrame(() =>
              setTimeout(() => resolve(document.querySelector("#canvas").toDataURL()), 60),
            );
          }),
      );
    const changes = {};
    const changed = async (name, act) => {
      const before = await picture();
      await act();
      changes[name] = (await picture()) !== before;
    };
    await andWait(page, async () => {
      await page.click("#try summary");
      await page.locator("#added").fill("40");
    });
    await changed("divider", () => page.locator("#split").fill("20"));
    const canvas = await page.locator("#canvas").boundingBox();
    await changed("dragged divider", async () => {
      await page.mouse.move(canvas.x + 0.2 * canvas.width, canvas.y + 100);
      await page.mouse.down();
      await page.mouse.move(canvas.x + 0.7 * canvas.width, canvas.y + 100, { steps: 3 });
      await page.mouse.up();
    });
    const divider = await page.inputValue("#split");
    const spoken = await page.getAttribute("#split", "aria-valuetext");
    for (const mode of ["after", "noise"])
      await changed(mode, () => page.click(`input[value="${mode}"] + span`));
    await page.click('input[value="after"] + span');
    const steps = await page.getAttribute("#step", "max");
    await changed("step", () => page.locator("#step").fill("1"));
    const step = await text(page, "#step-value");
    await page.locator("#step").fill(steps);
    for (const id of ["zoom-in", "zoom-one", "zoom-out", "zoom-fit"])
      await changed(id, () => page.click(`#${id}`));
    await changed("wheel", async () => {
      await page.mouse.move(canvas.x + 200, canvas.y + 200);
      await page.mouse.wheel(0, -300);
    });
    await changed("drag", async () => {
      await page.mouse.down();
      await page.mouse.move(canvas.x + 260, canvas.y + 230, { steps: 3 });
      await page.mouse.up();
    });
    await changed("pinch", () =>
      page.evaluate(({ x, y }) => {
        const finger = (pointerId, type, at) =>
          new PointerEvent(type, { pointerId, bubbles: true, clientX: x + at, clientY: y + 150 });
        const target = document.querySelector("#canvas");
        // Fingers that are not there cannot be captured.
        target.setPointerCapture = () => {};
        for (const [id, type, at] of [
          [11, "pointerdown", 200],
          [12, "pointerdown", 260],
          [12, "pointermove", 380],
          [11, "pointerup", 200],
          [12, "pointerup", 380],
        ])
          target.dispatchEvent(finger(id, type, at));
        delete target.setPointerCapture;
      }, canvas),
    );
    await page.focus("#canvas");
    for (const key of ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "+", "-", "0"])
      await changed(`key ${key}`, () => page.keyboard.press(key));
    await page.keyboard.press("Enter");
    await page.waitForSelector("#why-rows tr");
    const middle = await text(page, "#why-text");
    await page.click("#canvas", { position: { x: 300, y: 200 } });
    await page.waitForFunction(
      (old) => document.querySelector("#why-text").textContent !== old,
      middle,
    );
    const why = await text(page, "#why-text");
    const scales = await page.locator("#why-rows tr").count();
    await page.click("#compare summary");
    await page.click("#compare-run");
    await page.waitForFunction(() => document.querySelectorAll("#compared button").length === 8);
    const compared = await page.locator("#compared button").allTextContents();
    await page.waitForFunction(
      () => document.querySelector("#status").textContent === "Compared all models.",
    );
    await andWait(page, () => page.click('#compared button:has-text("eed")'));
    const model = await page.inputValue("#model");
    await andWait(page, async () => {
      await page.focus("#sigma");
      await page.keyboard.press("ArrowRight");
    });
    const moved = await text(page, "#command");
    await andWait(page, () => page.click("#sigma-auto"));
    const back = await text(page, "#command");
    const copied = {};
    for (const id of ["command", "python"]) {
      await page.click(`[data-copy="${id}"]`);
      copied[id] = await page.evaluate(() => navigator.clipboard.readText());
    }
    const python = await text(page, "#python");
    const unnamed = await page.evaluate(() =>
      [...document.querySelectorAll("button, input, select, canvas, progress")]
        .filter((element) => !element.closest("[hidden]"))
        .filter((element) => {
          const labels = [...(element.labels ?? [])].map((label) => label.textContent);
          const name = element.ariaLabel ?? [element.textContent, ...labels].join(" ");
          return !name.trim() && element.getAttribute("aria-hidden") !== "true";
        })
        .map((element) => element.outerHTML),
    );
    return { focused, several, changes, divider, spoken, step, why, scales, compared, model, moved, back, copied, python, unnamed };
  },

  // Once it was there, the page needs no network.
  async offline() {
    const page = await open();
    await page.evaluate(() => navigator.serviceWorker.ready);
    await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
    await page.context().setOffline(true);
    await page.reload();
    await page.waitForSelector("[data-sample]");
    await andWait(page, () => page.click('[data-sample="phantom.tif"]'));
    return facts(page);
  },

  // A phone: nothing is wider than the screen, and touch works.
  async phone() {
    const page = await open({ viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true });
    await page.waitForSelector("[data-sample]");
    const width = () => page.evaluate(() => document.documentElement.scrollWidth);
    const start = await width();
    await andWait(page, () => page.tap('[data-sample="fibres.tif"]'));
    const loaded = await width();
    await page.tap("#canvas", { position: { x: 100, y: 150 } });
    await page.waitForSelector("#why-rows tr");
    const sees = (selector) =>
      page.evaluate((name) => {
        const { top, bottom } = document.querySelector(name).getBoundingClientRect();
        return bottom > top && top >= 0 && bottom <= innerHeight;
      }, selector);
    const told = await sees("#go-to-why");
    const before = await sees("#why-text");
    await page.tap("#go-to-why");
    await page.waitForTimeout(100);
    const why = { told, before, after: await sees("#why-text") };
    const mouse = await page.locator(".with-mouse:visible").count();
    const targets = await page.evaluate(() =>
      [...document.querySelectorAll("button, select, summary")]
        .filter((element) => element.offsetParent)
        .map((element) => [element.textContent.slice(0, 20), element.getBoundingClientRect().height])
        .filter(([, height]) => height < 24),
    );
    return { start, loaded, why, mouse, targets };
  },
};

try {
  const seen = await scenarios[scenario](...given);
  const elsewhere = requests.filter((url) => !url.startsWith(address) && !/^(blob|data):/.test(url));
  console.log(JSON.stringify({ ...seen, errors, elsewhere }));
} finally {
  await browser.close();
}
