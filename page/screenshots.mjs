// Pictures of the page, for screenshots.py: node screenshots.mjs ADDRESS FOLDER

import { launch } from "./browser.mjs";

const [address, folder] = process.argv.slice(2);
const browser = await launch();

async function picture(name, viewport, act, options = {}) {
  const page = await browser.newPage({ viewport, ...options });
  page.on("pageerror", (error) => {
    throw error;
  });
  await page.goto(address);
  await page.waitForSelector("[data-sample]");
  await act(page);
  await page.waitForTimeout(300);
  await page.screenshot({ path: `${folder}/${name}.png` });
  await page.close();
}

const open = async (page, sample) => {
  await page.click(`[data-sample="${sample}"]`);
  await page.waitForSelector("body[data-done]", { timeout: 120000 });
};

const desktop = { width: 1080, height: 720 };
const phone = { width: 390, height: 844 };
await picture("page-desktop", desktop, (page) => open(page, "portrait.png"));
await picture("page-why", desktop, async (page) => {
  await open(page, "fibres.tif");
  await page.click('input[value="after"] + span');
  await page.click("#canvas", { position: { x: 340, y: 225 } });
  await page.waitForSelector("#why-rows tr");
  await page.locator("#why").scrollIntoViewIfNeeded();
});
await picture("page-compare", desktop, async (page) => {
  await open(page, "clean.png");
  await page.click("#try summary");
  await page.locator("#added").fill("40");
  await page.waitForSelector('body[data-done="2"]', { timeout: 120000 });
  await page.click("#compare summary");
  await page.click("#compare-run");
  await page.waitForFunction(() => document.querySelectorAll("#compared button").length === 8, null, {
    timeout: 120000,
  });
  await page.locator("#compared").scrollIntoViewIfNeeded();
});
await picture("page-phone", phone, (page) => open(page, "fibres.tif"), {
  isMobile: true,
  hasTouch: true,
});
await browser.close();
