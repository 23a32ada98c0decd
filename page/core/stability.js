// The largest step size that is proven stable. src/integrodiff/stages/stability.py has the proof and
// is the reference; the numbers are the same, so that both take the same steps.

const FIRST_TOTAL = 0.01;
const RATIO = 1 + 2 ** -10;
const BOXES = 64;
const MOST_PRODUCTS = 2 ** 27;
const ROUNDING = 1 - 1e-12;
const PRECISION = 1e-3;
const TABLE_BOXES = 512;

const binomial = (n, k) => {
  let found = 1;
  for (let i = 1; i <= k; i += 1) found = (found * (n - k + i)) / i;
  return found;
};

// ---- eigenvalues of derivative operators at p = 1 - cos(wx) and q = 1 - cos(wy) ----

const haar = (theta) => {
  const [slope, twist] = [2, 4 * theta];
  const value = (p, q) => slope * (p + q) - twist * p * q;
  const c = twist / (2 * slope);
  return {
    value,
    bound: (p0, p1, q0, q1) => slope * (p1 * (1 - c * q0) + q1 * (1 - c * p0)),
    // Of minus the second derivative of the decayed symbol along the line of its maxima.
    concavity(decay, low, high) {
      const rate = low < 2 ? slope : slope - 2 * twist;
      const ends = [low, high].map((r) => value(Math.min(r, 2), Math.max(r - 2, 0)));
      return Math.max(decay * (2 * rate - decay * Math.min(...ends)), 0) * Math.exp(-decay * low);
    },
  };
};

const constant = (bound) => ({ value: () => bound, bound: () => bound, concavity: () => 0 });

const higher = (order) => {
  const factors = Array.from({ length: order + 1 }, (_, j) => ({
    count: binomial(order, j),
    a: order - j,
    b: j,
    averagesP: (2 * order - j) % 2 === 1,
    averagesQ: (order + j) % 2 === 1,
  }));
  const sum = (p0, p1, q0, q1) => {
    let found = 0;
    for (const { count, a, b, averagesP, averagesQ } of factors)
      found +=
        count *
        (2 * p1) ** a *
        (averagesP ? 1 - p0 / 2 : 1) *
        (2 * q1) ** b *
        (averagesQ ? 1 - q0 / 2 : 1);
    return found;
  };
  return { value: (p, q) => sum(p, p, q, q), bound: sum, concavity: null };
};

const symbolOf = (order, theta) => (order === 1 ? haar(theta) : higher(order));

// ---- what each scale of each term adds ----

function sharesOf(evolution) {
  const columns = new Map();
  const shares = [];
  const column = (name, decay, symbol) => {
    if (!columns.has(name)) {
      columns.set(name, shares.length);
      shares.push({ decay, symbol });
    }
    return columns.get(name);
  };
  const rows = [];
  const { schedule, pulls, scales, theta } = evolution;
  for (let row = 0; row < Math.max(schedule.length, pulls.length); row += 1) {
    const weights = [];
    const add = (k, weight) => {
      weights[k] = (weights[k] ?? 0) + weight;
    };
    const pull = pulls[pulls.length === 1 ? 0 : row];
    if (pull) add(column("pull", 0, constant(2)), pull);
    for (const term of schedule[schedule.length === 1 ? 0 : row])
      term.fluxWeights.forEach((weight, i) => {
        if (!weight) return;
        const decay = 2 * scales[i] ** 2;
        add(column(`${term.order} ${decay}`, decay, symbolOf(term.order, theta)), weight);
      });
    rows.push(weights);
  }
  return { shares, rows: rows.map((weights) => shares.map((_, k) => weights[k] ?? 0)) };
}

function boundOnLine(shares, rows) {
  const first = FIRST_TOTAL / Math.max(1, ...shares.map((share) => share.decay));
  const count = Math.ceil(Math.log(2 / first) / Math.log(RATIO));
  const totals = [0];
  for (let k = 0; k <= count; k += 1) totals.push(first * (2 / first) ** (k / count));
  totals[totals.length - 1] = 2;
  for (let k = 1; k <= 512; k += 1) totals.push(2 + k / 256);
  // The smallest product p q for p + q = r is zero up to r = 2; beyond, one of them is 2.
  const samples = shares.map(({ decay, symbol }) =>
    totals.map((r) => Math.exp(-decay * r) * symbol.value(Math.min(r, 2), Math.max(r - 2, 0))),
  );
  const excesses = shares.map(({ decay, symbol }) =>
    totals.slice(1).map((r, k) => symbol.concavity(decay, totals[k], r)),
  );
  let largest = 0;
  for (const weights of rows) {
    const sum = (values, k) => weights.reduce((total, weight, s) => total + weight * values[s][k], 0);
    let before = sum(samples, 0);
    for (let k = 1; k < totals.length; k += 1) {
      const here = sum(samples, k);
      const excess = (sum(excesses, k - 1) * (totals[k] - totals[k - 1]) ** 2) / 8;
      largest = Math.max(largest, Math.max(before, here) + excess);
      before = here;
    }
  }
  return largest;
}

function boundByBoxes(shares, rows) {
  let size = 2 / BOXES;
  let low = [];
  for (let i = 0; i < BOXES; i += 1)
    for (let j = 0; j <= i; j += 1) low.push([i * size, j * size]);
  const productsPerBox = shares.length * (rows.length + 10);
  let products = productsPerBox * low.length;
  const largestOf = (values) => {
    let found = 0;
    for (const weights of rows) {
      let sum = 0;
      for (let s = 0; s < weights.length; s += 1) sum += weights[s] * values[s];
      if (sum > found) found = sum;
    }
    return found;
  };
  for (;;) {
    let most = 0;
    let attained = 0;
    const uppers = low.map(([p, q]) => {
      const upper = largestOf(
        shares.map(
          ({ decay, symbol }) =>
            Math.exp(-decay * (p + q)) * symbol.bound(p, p + size, q, q + size),
        ),
      );
      const at = (u, v) =>
        largestOf(shares.map(({ decay, symbol }) => Math.exp(-decay * (u + v)) * symbol.value(u, v)));
      attained = Math.max(attained, at(p + size / 2, q + size / 2), at(p + size, q + size));
      most = Math.max(most, upper);
      return upper;
    });
    const kept = low.filter((_, k) => uppers[k] > attained * ROUNDING);
    products += 4 * productsPerBox * kept.length;
    if (most <= attained * (1 + PRECISION) || products > MOST_PRODUCTS) return most;
    size /= 2;
    low = [0, 1, 2, 3].flatMap((corner) =>
      kept.map(([p, q]) => [p + size * (corner >> 1), q + size * (corner & 1)]),
    );
  }
}

/** Return the largest step size for which the Euclidean norm provably never grows. */
export function stableStep(evolution) {
  const { shares, rows } = sharesOf(evolution);
  if (!shares.length) return Infinity;
  const onLine = shares.every((share) => share.symbol.concavity);
  const largest = onLine ? boundOnLine(shares, rows) : boundByBoxes(shares, rows);
  return largest > 0 ? 2 / largest : Infinity;
}

/**
 * Return bounds of the eigenvalues that channels, pairs of order and scale, add with weight one: for
 * each channel a list over boxes of frequencies.
 */
export function stepTable(channels, theta) {
  const edges = Array.from({ length: TABLE_BOXES + 1 }, (_, k) => 2 * (k / TABLE_BOXES) ** 2);
  return channels.map(([order, scale]) => {
    const symbol = symbolOf(order, theta);
    const decays = edges.map((edge) => Math.exp(-2 * scale ** 2 * edge));
    const found = new Float64Array((TABLE_BOXES * (TABLE_BOXES + 1)) / 2);
    let n = 0;
    for (let i = 0; i < TABLE_BOXES; i += 1)
      for (let j = 0; j <= i; j += 1) {
        found[n] =
          decays[i] * decays[j] * symbol.bound(edges[i], edges[i + 1], edges[j], edges[j + 1]);
        n += 1;
      }
    return found;
  });
}
