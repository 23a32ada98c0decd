// The command line and the Python code that give the same result.

import { resultFormat } from "../formats/files.js";

const SUFFIXES = { png: ".png", tiff: ".tif" };

const quoted = (name) => (/^[\w.+,@%/-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`);

/** A name that begins with a dash would be taken for an option. */
const asFile = (name) => quoted(name.startsWith("-") ? `./${name}` : name);

export function resultName(image) {
  return `${image.name.replace(/\.[^.]*$/, "")}-denoised${SUFFIXES[resultFormat(image)]}`;
}

export function commandFor(image, { model, defaultModel, sigma }) {
  const options = ["--exact"];
  if (model !== defaultModel) options.unshift("--model", model);
  if (sigma !== null) options.unshift("--sigma", String(sigma));
  return `integrodiff denoise ${asFile(image.name)} ${asFile(resultName(image))} ${options.join(" ")}`;
}

export function pythonFor(image, { model, defaultModel, sigma }) {
  const [source, target] = [image.name, resultName(image)].map((name) => JSON.stringify(name));
  const wide = image.data instanceof Uint16Array && image.samples === 3;
  const lines = ["from integrodiff import denoise"];
  let write;
  if (image.format === "tiff") {
    lines.unshift("import tifffile");
    lines.push("", `image = tifffile.imread(${source})`);
    write = `tifffile.imwrite(${target}, clean)`;
  } else if (wide) {
    lines.unshift("import imagecodecs");
    lines.push("", `image = imagecodecs.imread(${source})`);
    write = `imagecodecs.imwrite(${target}, clean)`;
  } else {
    lines.unshift("import numpy as np");
    lines.splice(1, 0, "from PIL import Image");
    lines.push("", `image = np.asarray(Image.open(${source}))`);
    write = `Image.fromarray(clean).save(${target})`;
  }
  const options = [];
  if (sigma !== null) options.push(`sigma=${sigma}`);
  if (model !== defaultModel) options.push(`model="${model}"`);
  options.push("exact=True");
  if (image.stride > 1) options.push("channel_axis=-1");
  lines.push(`clean = denoise(image, ${options.join(", ")})`, write);
  return lines.join("\n");
}
