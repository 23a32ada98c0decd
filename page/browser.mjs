// Chromium for tests, screenshots and the benchmark: where it is, and how it starts on machines
// without a screen, sandbox or network.

import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const PLACES = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export async function launch() {
  const executablePath = process.env.CHROMIUM ?? PLACES.find((path) => existsSync(path));
  if (!executablePath) throw new Error("Chromium is missing; name it in CHROMIUM");
  return chromium.launch({
    executablePath,
    args: [
      ...["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"],
      ...["--disable-background-networking", "--disable-component-update"],
    ],
  });
}
