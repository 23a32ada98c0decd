// Pictures of the page for the documentation: node page/screenshots.mjs ADDRESS FOLDER

import { launch } from "./browser.mjs";

const [address, folder] = process.argv.slice(2);
const browser = await launch();

async function picture(name, viewport, act, options = {}) {
  const page = await browser.newPage({ viewport, ...options });
  page.on("pageerror", (error) => console.error(error));
  page.on("console", (message) => message.type() === "error" && console.error(message.text()));
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

const desktop = { width: 1200, height: 800 };
const phone = { width: 390, height: 844 };
await picture("page-start", desktop, async () => {});
await picture("page-desktop", desktop, (page) => open(page, "portrait.png"));
await picture("page-why", desktop, async (page) => {
  await open(page, "fibres.tif");
  await page.click('input[value="after"] + span');
  await page.click("#canvas", { position: { x: 380, y: 260 } });
  await page.waitForSelector("#why-rows tr");
  await page.locator("#why").scrollIntoViewIfNeeded();
});
await picture("page-phone", phone, (page) => open(page, "fibres.tif"), { isMobile: true, hasTouch: true });
await browser.close();
