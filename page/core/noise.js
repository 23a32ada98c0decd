// Noise of an image, estimated from its flat parts. src/integrodiff/noise/spectrum.py and levels.py
// explain the method and are the reference; their fitted numbers are in `constants`.

const SIDE = 8;
const PIXELS = SIDE * SIDE;

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function median(values) {
  const sorted = Float64Array.from(values).sort();
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

function extremeOf(values, pick) {
  let found = values[0];
  for (let k = 1; k < values.length; k += 1) found = pick(found, values[k]);
  return found;
}

/** Return the value at a place, linear between increasing places and constant beyond them. */
function interpolated(place, places, values) {
  const last = places.length - 1;
  const x = Math.min(Math.max(place, places[0]), places[last]);
  let k = 1;
  while (k < last && places[k] < x) k += 1;
  const part = (x - places[k - 1]) / (places[k] - places[k - 1]);
  return values[k - 1] + (values[k] - values[k - 1]) * part;
}

const ramp = (value, zero, one) => Math.min(Math.max((value - zero) / (one - zero), 0), 1);

// ---- frequencies of a tile ----

const P = Array.from({ length: SIDE }, (_, k) => 1 - Math.cos((Math.PI * k) / SIDE));
const TOTAL = Float64Array.from({ length: PIXELS }, (_, k) => P[k >> 3] + P[k & 7]);
const PRODUCT = Float64Array.from({ length: PIXELS }, (_, k) => P[k >> 3] * P[k & 7]);

function band(power, [low, high]) {
  return mean(Array.from(power).filter((_, k) => TOTAL[k] >= low && TOTAL[k] < high));
}

// ---- the pixels that are looked at ----

const COSINES = Float64Array.from({ length: PIXELS }, (_, n) => {
  const [k, x] = [n >> 3, n & 7];
  const value = Math.sqrt(2 / SIDE) * Math.cos((Math.PI * (x + 0.5) * k) / SIDE);
  return k ? value : value / Math.SQRT2;
});

/** Return cosine coefficients of squares of 64 values, in single precision. */
function transformed(values) {
  const found = new Float32Array(values.length);
  const half = new Float64Array(PIXELS);
  for (let start = 0; start < values.length; start += PIXELS) {
    for (let y = 0; y < PIXELS; y += SIDE)
      for (let k = 0; k < SIDE; k += 1) {
        let sum = 0;
        for (let x = 0; x < SIDE; x += 1) sum += values[start + y + x] * COSINES[k * SIDE + x];
        half[y + k] = sum;
      }
    for (let v = 0; v < SIDE; v += 1)
      for (let u = 0; u < SIDE; u += 1) {
        let sum = 0;
        for (let y = 0; y < SIDE; y += 1) sum += half[y * SIDE + u] * COSINES[v * SIDE + y];
        found[start + v * SIDE + u] = sum;
      }
  }
  return found;
}

/** Return squares of one sample whose first pixels lie on a grid: count x 64 values. */
function squaresOf(image, sample, rows, columns) {
  const { data, width, stride } = image;
  const found = new Float64Array(rows.length * columns.length * PIXELS);
  let n = 0;
  for (const row of rows)
    for (const column of columns)
      for (let y = 0; y < SIDE; y += 1)
        for (let x = 0; x < SIDE; x += 1) {
          found[n] = data[((row + y) * width + column + x) * stride + sample];
          n += 1;
        }
  return found;
}

const range = (first, end, step) => {
  const found = [];
  for (let k = first; k < end; k += step) found.push(k);
  return found;
};

function blocksOf(image, first, c) {
  const [height, width] = [image.height - SIDE + 1, image.width - SIDE + 1];
  const rows = range(first, height, SIDE);
  const columns = range(first, width, SIDE);
  const count = rows.length * columns.length;
  if (count < c.FEWEST_BLOCKS) return [[], []];
  const step = Math.max(1, Math.floor(Math.sqrt(Math.floor(count / c.MOST_BLOCKS))));
  const every = (places) => places.filter((_, k) => k % step === 0);
  return [every(rows), every(columns)];
}

/**
 * Return the pixels of an image that are looked at, or null if it is smaller than a tile.
 *
 * An image has `data` with `stride` numbers for each pixel, of which the first `samples` count.
 */
export function glimpseOf(image, constants) {
  const c = constants.spectrum;
  if (Math.min(image.height, image.width) < SIDE) return null;
  const [height, width] = [image.height - SIDE + 1, image.width - SIDE + 1];
  const step = Math.ceil(Math.sqrt((height * width) / c.MOST_TILES)) | 1;
  const rows = range(0, height, step);
  const columns = range(0, width, step);
  const on = blocksOf(image, 0, c);
  const off = blocksOf(image, SIDE / 2, c);
  const samples = range(0, image.samples, 1);
  return {
    tiles: samples.map((sample) => squaresOf(image, sample, rows, columns)),
    places: [rows.length, columns.length],
    reach: Math.ceil(SIDE / step),
    blocks: [on, off].map((places) => samples.map((sample) => squaresOf(image, sample, ...places))),
  };
}

function mixed(samples, weights) {
  const total = new Float64Array(samples[0].length);
  weights.forEach((weight, s) => {
    if (weight) for (let k = 0; k < total.length; k += 1) total[k] += weight * samples[s][k];
  });
  return total;
}

/** Return in which tiles of a sample pixels are clipped to its smallest or largest value. */
function clippedTiles(tiles, c) {
  const found = new Array(tiles.length / PIXELS).fill(false);
  for (const pick of [Math.min, Math.max]) {
    const extreme = extremeOf(tiles, pick);
    let all = 0;
    const counts = found.map((_, n) => {
      let count = 0;
      for (let k = n * PIXELS; k < (n + 1) * PIXELS; k += 1) count += tiles[k] === extreme ? 1 : 0;
      all += count;
      return count;
    });
    if (all / tiles.length > c.CLIPPED_PART)
      counts.forEach((count, n) => {
        if (count / PIXELS > c.CLIPPED_PIXELS) found[n] = true;
      });
  }
  return found;
}

function sparsity(blocks, middle, unit) {
  const values = new Float32Array(blocks.length);
  for (let k = 0; k < blocks.length; k += 1) values[k] = (blocks[k] - middle) / unit;
  const coefficients = transformed(values);
  const ratios = [];
  for (let f = 0; f < PIXELS; f += 1) {
    if (TOTAL[f] < 1) continue;
    let [sum, squares] = [0, 0];
    for (let k = f; k < coefficients.length; k += PIXELS) {
      sum += Math.abs(coefficients[k]);
      squares += coefficients[k] ** 2;
    }
    const count = coefficients.length / PIXELS;
    if (sum > 0) ratios.push(Math.sqrt(squares / count) / (sum / count));
  }
  return ratios.length ? mean(ratios) : 1;
}

/** Return the tiles of a sum of the samples of a glimpse, or null if they are constant. */
export function tilesOf(glimpse, weights, constants) {
  const c = constants.spectrum;
  const parts = range(0, weights.length, 1).filter((s) => weights[s]);
  let spoiled = null;
  if (parts.length > 1) {
    const found = parts.map((s) => clippedTiles(glimpse.tiles[s], c));
    spoiled = found[0].map((_, n) => found.some((part) => part[n]));
  }
  const values = mixed(glimpse.tiles, weights);
  const count = values.length / PIXELS;
  const middle = median(range(0, values.length, PIXELS).map((k) => values[k]));
  let [smallest, largest] = [Infinity, -Infinity];
  for (let k = 0; k < values.length; k += 1) {
    values[k] -= middle;
    smallest = Math.min(smallest, values[k]);
    largest = Math.max(largest, values[k]);
  }
  if (smallest === largest) return null;
  const span = 2 ** (Math.floor(Math.log2(largest - smallest)) + 1);
  let sum = 0;
  for (let k = 0; k < values.length; k += 1) sum += Math.abs(values[k] / span);
  const typical = sum / values.length;
  const small = new Float32Array(values.length);
  for (let k = 0; k < values.length; k += 1) small[k] = values[k] / span / typical;
  const clipped = [
    [smallest, extremeOf(small, Math.min), -Infinity],
    [largest, extremeOf(small, Math.max), Infinity],
  ].map(([extreme, smallExtreme, outside]) => {
    let there = 0;
    for (const value of small) there += value === smallExtreme ? 1 : 0;
    return there / small.length > c.CLIPPED_PART ? extreme / span / typical : outside;
  });
  const power = transformed(small);
  const means = new Float64Array(count);
  const energies = new Float64Array(count);
  for (let n = 0; n < count; n += 1) {
    means[n] = power[n * PIXELS] / SIDE;
    power[n * PIXELS] = 0;
    let total = 0;
    for (let k = n * PIXELS; k < (n + 1) * PIXELS; k += 1) {
      power[k] *= power[k];
      total += power[k];
    }
    energies[n] = total / (PIXELS - 1);
  }
  const unit = typical * span;
  const [on, off] = glimpse.blocks.map((blocks) => mixed(blocks, weights));
  const compressed =
    on.length > 0 &&
    off.length > 0 &&
    Math.log(sparsity(on, middle, unit) / sparsity(off, middle, unit)) > c.SPARSER;
  const { places, reach } = glimpse;
  return { power, means, energies, unit, clipped, compressed, spoiled, places, reach };
}

// ---- the noise in the flat parts ----

const energyOf = (power) => power.reduce((sum, value) => sum + value, 0) / (PIXELS - 1);

function meanOfNeighbours(values, [rows, columns], reach) {
  // Along a short axis a reflected neighbour may be the tile itself, or overlap with it.
  const placeOf = (k, size) => {
    if (k >= 0 && k < size) return k;
    if (size <= 2 * reach) return -1;
    return k < 0 ? -k : 2 * (size - 1) - k;
  };
  return values.map((_, n) => {
    const [y, x] = [Math.floor(n / columns), n % columns];
    const places = [
      [placeOf(y - reach, rows), x],
      [placeOf(y + reach, rows), x],
      [y, placeOf(x - reach, columns)],
      [y, placeOf(x + reach, columns)],
    ].filter(([row, column]) => row >= 0 && column >= 0);
    const total = places.reduce((sum, [row, column]) => sum + values[row * columns + column], 0);
    return places.length > 0 ? total / places.length : Infinity;
  });
}

/** Return the deviation of the energies of tiles, from a frequency on, over that of Gaussian noise. */
function spreadOf(tiles, chosen, power, from) {
  const places = range(0, PIXELS, 1).filter((k) => TOTAL[k] >= from);
  const energies = chosen.map((n) =>
    places.reduce((sum, k) => sum + tiles.power[n * PIXELS + k], 0),
  );
  const average = mean(energies);
  const deviation = Math.sqrt(mean(energies.map((energy) => (energy - average) ** 2)));
  const expected = Math.sqrt(2 * places.reduce((sum, k) => sum + power[k] ** 2, 0));
  return expected > 0 ? deviation / expected : 1;
}

/** Return the distance of the mean of a tile to the next clipped grey value. */
function headroom({ means, clipped: [darkest, brightest] }, n) {
  return Math.min(means[n] - darkest, brightest - means[n]);
}

/** Return the level of Gaussian noise over what clipping leaves of it in the chosen tiles. */
function clippingLoss(found, level, [places, deviations]) {
  return 1 / interpolated(found.headroom / level, places, deviations);
}

/** Return the rise of a spectrum to the lowest frequencies, as a logarithm. */
function steepness(power) {
  const [next, lowest] = [band(power, [1, 2]), band(power, [Number.MIN_VALUE, 1])];
  return lowest > 0 && next > 0 ? Math.log(lowest / next) / 2 : 0;
}

function measured(tiles, usable, c) {
  const own = tiles.energies;
  const known = Array.from(own, (energy, n) => (usable[n] ? energy : Infinity));
  let around = meanOfNeighbours(known, tiles.places, tiles.reach).map((value, n) =>
    usable[n] ? value : Infinity,
  );
  if (around.filter(Number.isFinite).length < c.FEWEST_CHOSEN) around = known;
  const finite = range(0, own.length, 1).filter((n) => Number.isFinite(around[n]));
  const wanted = Math.max(c.FEWEST_CHOSEN, Math.floor(c.CHOSEN_PART * own.length));
  finite.sort((a, b) => around[a] - around[b]);
  let chosen = finite.slice(0, wanted);
  const limit = c.OUTLIER * median(chosen.map((n) => own[n]));
  chosen = chosen.filter((n) => own[n] <= limit);
  const power = new Float64Array(PIXELS);
  for (const n of chosen)
    for (let k = 0; k < PIXELS; k += 1) power[k] += tiles.power[n * PIXELS + k] / chosen.length;
  return {
    power,
    unit: tiles.unit,
    spread: spreadOf(tiles, chosen, power, 0),
    highSpread: spreadOf(tiles, chosen, power, 2),
    headroom: median(chosen.map((n) => headroom(tiles, n))),
    compressed: tiles.compressed,
    structure: median(own.filter((_, n) => usable[n])) / energyOf(power),
    count: own.length / tiles.reach ** 2,
    clipped: 0,
  };
}

function measurement(tiles, c) {
  const usable = Array.from(
    tiles.energies,
    (energy, n) => energy > (c.ROUNDING * tiles.means[n]) ** 2,
  );
  const total = usable.filter(Boolean).length;
  if (!total) return null;
  let found = measured(tiles, usable, c);
  const without = (inside) => {
    const left = inside.filter(Boolean).length;
    return left < c.FEWEST_CHOSEN
      ? null
      : { ...measured(tiles, inside, c), clipped: 1 - left / total };
  };
  if (tiles.spoiled) {
    const inside = usable.map((good, n) => good && !tiles.spoiled[n]);
    if (inside.filter(Boolean).length < total) {
      const again = without(inside);
      if (again && energyOf(again.power) < c.CLIPPED_LOSS ** 2 * energyOf(found.power))
        found = again;
    }
  } else if (tiles.clipped.some(Number.isFinite)) {
    for (let round = 0; round < c.CLIPPED_ROUNDS; round += 1) {
      const level = Math.sqrt(energyOf(found.power));
      const loss = clippingLoss(found, level, c.CLIPPED_NORMAL);
      const reach = c.CLIPPED_REACH * level;
      const again = without(usable.map((good, n) => good && headroom(tiles, n) > reach));
      if (!again) break;
      const more = Math.sqrt(energyOf(again.power)) > c.MORE_NOISE * loss * level;
      if (more && steepness(again.power) > steepness(found.power) + c.STEEPER)
        // No flat tile is left there, but clipped ones tell the noise as well.
        return { ...found, power: found.power.map((value) => value * loss ** 2) };
      found = again;
    }
  }
  return found;
}

// ---- levels per scale ----

/** Noise level as a function of the smoothing scale, piecewise linear in logarithms. */
export class NoiseLevels {
  /** `compressed` noise was white before; `lowest` is the level at the frequency zero. */
  constructor(scales, levels, deviation, doubtful, constants, compressed = false, lowest = 0) {
    Object.assign(this, { scales, levels, deviation, doubtful, constants, compressed, lowest });
  }

  get isWhite() {
    return this.levels.every((level) => level === this.levels[0]);
  }

  /** The one noise level at which a model is evaluated. */
  get effective() {
    if (this.isWhite) return this.levels[0];
    const { ONE_PIXEL, SLOWER_DECAY } = this.constants.levels;
    const medium = this.at(ONE_PIXEL);
    return medium * (medium / this.at(0)) ** SLOWER_DECAY;
  }

  /** Standard deviation of the noise, or the effective level if it is not known. */
  get sigma() {
    return this.deviation ?? this.effective;
  }

  at(scale) {
    if (this.isWhite) return this.levels[0];
    const { scales, levels } = this;
    const place = Math.min(Math.max(scale, scales[0]), scales[scales.length - 1]);
    return Math.exp(interpolated(Math.log(place), scales.map(Math.log), levels.map(Math.log)));
  }

  relative(scale) {
    return this.isWhite ? 1 : this.at(scale) / this.at(this.constants.levels.ONE_PIXEL);
  }

  times(factor) {
    return new NoiseLevels(
      this.scales,
      this.levels.map((level) => level * factor),
      this.deviation === null ? null : this.deviation * factor,
      this.doubtful,
      this.constants,
      this.compressed,
      this.lowest * factor,
    );
  }
}

export const white = (level, constants, doubtful = false) =>
  new NoiseLevels([1], [level], level, doubtful, constants);

function withoutStructure(found, c) {
  const { power } = found;
  const rise =
    Math.log(Math.max(band(power, c.MIDDLE), c.TINY) / Math.max(band(power, c.TOP), c.TINY)) / 2;
  const share = Math.max(
    ramp(found.spread, ...c.SPREAD_OF_STRUCTURE),
    ramp(-rise, ...c.FLAT_AT_HIGH),
  );
  const lowest = band(power, c.LOW);
  const raw = TOTAL.map((r) =>
    r ? r ** -c.STRUCTURE_EXPONENT * Math.exp(-c.STRUCTURE_DECAY * r) : 0,
  );
  const unit = band(raw, c.LOW);
  const floor = c.LEAST_NOISE * band(power, c.TOP);
  const least = power.map((value) => Math.max(Math.min(value, floor), c.LEAST_PART * value));
  let amount = 0;
  let rest = power;
  for (let round = 0; round < c.STRUCTURE_ROUNDS; round += 1) {
    const present = amount;
    rest = power.map((value, k) => Math.max(value - (present * raw[k]) / unit, least[k]));
    const following = band(rest, c.NEXT);
    const middle = band(rest, c.MIDDLE);
    const noise = middle > 0 ? following * Math.max(following / middle, 1) : following;
    amount = share * Math.max(lowest - noise, 0);
  }
  if (amount === 0) return power;
  return power.map((value, k) =>
    TOTAL[k] < c.LOW[1] ? value * ((lowest - amount) / lowest) : rest[k],
  );
}

function compressedLevel(power, c) {
  const [top, middle, lower] = [c.TOP, c.MIDDLE, c.NEXT].map((ends) => band(power, ends));
  if (Math.min(top, middle, lower) === 0) return Math.sqrt(lower);
  const toMiddle = Math.max(Math.log(middle / top) / 2, 0);
  const toLower = Math.min(
    Math.log(lower / middle) / 2,
    c.COMPRESSED_LOWER_RISE + c.COMPRESSED_BEND * toMiddle,
  );
  const rise = c.COMPRESSED_LEVEL + c.COMPRESSED_BY_RISE * Math.min(toMiddle, 1);
  return Math.sqrt(middle) * Math.exp(toLower + rise);
}

function correlatedShare(found, c) {
  const bands = [c.TOP, c.MIDDLE, c.NEXT].map((ends) => band(found.power, ends));
  if (Math.min(...bands) === 0) return 0;
  const [toMiddle, toLower] = [
    Math.log(bands[1] / bands[0]) / 2,
    Math.log(bands[2] / bands[1]) / 2,
  ];
  if (toMiddle < 0) return ramp(-toMiddle, c.SHARPENED_FROM, c.SHARPENED_SURELY);
  const steep = ramp(toMiddle + toLower, ...c.STEEP);
  const high = c.DOUBT_BY_HIGH_SPREAD * Math.max(found.highSpread - c.USUAL_HIGH_SPREAD, 0);
  const all = c.DOUBT_BY_SPREAD * Math.max(found.spread - c.USUAL_SPREAD, 0);
  let evidence = toMiddle + c.LOWER_RISE * Math.min(toLower, toMiddle);
  evidence -= (1 - steep) * high + steep * all;
  evidence -= Math.max(c.DOUBT_BY_SIZE / Math.sqrt(found.count) - c.USUAL_DOUBT, 0);
  evidence -= c.DOUBT_BY_CLIPPING * found.clipped;
  return ramp(evidence, c.WHITE_UP_TO, c.CORRELATED_FROM);
}

function levelsOf(power, scales) {
  const lowest = Math.min(...TOTAL.filter((r) => r > 0));
  return scales.map((scale) => {
    let [sum, weights] = [0, 0];
    for (let k = 0; k < PIXELS; k += 1) {
      const weight =
        (2 * TOTAL[k] - PRODUCT[k]) * Math.exp(-2 * scale ** 2 * (TOTAL[k] - lowest));
      sum += weight * power[k];
      weights += weight;
    }
    return Math.sqrt(sum / weights);
  });
}

/** Whether a spectrum is about the same from the lowest to the highest frequencies. */
function isEven(power, c) {
  const [lowest, lower, top] = [c.LOWEST, c.NEXT, c.TOP].map((ends) => band(power, ends));
  return top >= c.EVEN_AT_TOP ** 2 * lower && lowest <= c.EVEN_AT_LOWEST ** 2 * lower;
}

/** Return the level to which a spectrum goes on at the frequency zero, or 0 if unknown. */
function levelAtZero(power, c) {
  const [lowest, above] = [band(power, c.LOWEST), band(power, c.ABOVE_LOWEST)];
  if (Math.min(lowest, above) === 0) return 0;
  const rise = Math.max(Math.log(lowest / above) / 2, 0);
  return rise <= c.MOST_RISE ? Math.sqrt(lowest) * Math.exp(c.RISE_TO_ZERO * rise) : 0;
}

/** Return the noise levels that the tiles of an image show. */
export function noiseOf(tiles, constants) {
  const c = constants.levels;
  const found = tiles && measurement(tiles, constants.spectrum);
  if (!found) return white(0, constants);
  const power = withoutStructure(found, c);
  const [middle, lower] = [band(found.power, c.MIDDLE), band(found.power, c.NEXT)];
  const compressed =
    found.compressed &&
    middle > 0 &&
    Math.log(Math.max(lower, c.TINY) / middle) / 2 < c.MOST_COMPRESSED_RISE;
  const high = Array.from(power).filter((_, k) => TOTAL[k] >= c.WHITE_FROM);
  const level = compressed ? compressedLevel(power, c) : Math.sqrt(mean(high));
  const left = band(found.power, c.LOW) / Math.max(band(power, c.LOW), c.TINY);
  const share = compressed ? 0 : correlatedShare(found, c);
  const doubtful = left > c.MOSTLY_STRUCTURE || (found.spread > c.UNEVEN && !compressed);
  if (level < c.ROUNDING) return white(0, constants);
  const tells = found.spread <= c.UNEVEN && found.structure <= c.SATURATED;
  const lowest = tells ? levelAtZero(found.power, c) * found.unit : 0;
  if (share === 0) {
    const sigma = level * found.unit;
    const plain = isEven(found.power, c) && !compressed;
    const zero = plain ? sigma : lowest;
    return new NoiseLevels([1], [sigma], sigma, doubtful, constants, compressed, zero);
  }
  const levels = levelsOf(power, c.SCALES).map(
    (value) => level ** (1 - share) * Math.max(value, 1e-6 * level) ** share,
  );
  const others = Array.from(power).filter((_, k) => TOTAL[k] > 0);
  const variance = level ** (2 - 2 * share) * mean(others) ** share;
  return new NoiseLevels(
    c.SCALES,
    levels.map((value) => value * found.unit),
    Math.sqrt(variance) * found.unit,
    doubtful,
    constants,
    false,
    lowest,
  );
}

/** Return the noise found, with at most this level at all scales, and partly as it was. */
function limited(found, most, kept) {
  const [least, largest] = [Math.min(...found.levels), Math.max(...found.levels)];
  if (largest <= most || kept === 1) return found;
  const base = Math.min(least, most);
  const part = largest > least ? Math.log(most / base) / Math.log(largest / least) : 0;
  const levels = found.levels.map(
    (level) => level ** kept * (base * (level / least) ** part) ** (1 - kept),
  );
  const result = Object.assign(found.times(1), { levels });
  if (result.deviation !== null) result.deviation *= result.effective / found.effective;
  return result;
}

/**
 * Correct the levels of colour samples, and of luminance and differences, for texture, which is in
 * the luminance and hardly in the differences.
 */
export function withoutTexture(samples, found) {
  const { constants } = found[0];
  const c = constants.levels;
  const [luminance, ...differences] = found;
  const known = differences.map((levels) => levels.lowest).filter((level) => level > 0);
  const own = samples.map((levels) => levels.effective);
  const areAlike = Math.max(...own) <= c.ALIKE * Math.min(...own);
  if (!known.length || luminance.effective === 0 || !areAlike) return [samples, found];
  const lowest = Math.min(...known);
  const lowered = (most, kept) =>
    samples.map((levels) => limited(levels, most * c.MOST_OF_SAMPLES, kept));
  let most = lowest / Math.sqrt(samples.length);
  if ([...samples, ...differences].every((levels) => levels.isWhite && !levels.compressed)) {
    const squares = (some) => some.reduce((sum, levels) => sum + levels.effective ** 2, 0);
    const [total, power] = [squares(samples), squares(differences)];
    const independent = total / 3 <= (c.INDEPENDENT ** 2 * power) / 2;
    if (!independent) most = c.MOST_OF_LUMINANCE * Math.sqrt((total - power) / 3);
    return [
      independent ? lowered(lowest, 0) : samples,
      [luminance.effective <= most ? luminance : white(most, constants), ...differences],
    ];
  }
  most *= c.MOST_OF_LUMINANCE;
  let kept = ramp(
    Math.log(luminance.effective / most),
    Math.log(c.COMMON_FROM),
    Math.log(c.COMMON_SURELY),
  );
  if (luminance.lowest > 0) {
    const rise = Math.log(luminance.lowest / luminance.effective);
    const texture = ramp(rise, Math.log(c.TEXTURE_FROM), Math.log(c.TEXTURE_SURELY));
    kept = Math.max(kept, 1 - texture);
  }
  const least = c.LEAST_OF_DIFFERENCES * lowest;
  return [
    lowered(lowest, kept),
    [
      limited(luminance, most, kept),
      ...differences.map((levels) =>
        levels.compressed ? levels.times(Math.max(1, least / levels.effective)) : levels,
      ),
    ],
  ];
}

/** Return the levels that samples share once each was divided by its effective level. */
export function joinedLevels(found) {
  const { constants } = found[0];
  if (found.every((levels) => levels.isWhite)) return white(1, constants);
  const rows = found.map((levels) => levels.times(1 / levels.effective));
  const scales = constants.levels.SCALES;
  const values = scales.map((scale) => Math.sqrt(mean(rows.map((row) => row.at(scale) ** 2))));
  const joined = new NoiseLevels(scales, values, null, false, constants);
  return joined.times(1 / joined.effective);
}
