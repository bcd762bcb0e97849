"use strict";
// The arithmetic of the page, and nothing else: lookup = score -> weigh -> blend. Node can run it alone.

const addUp = (q, k, term) => q.reduce((sum, x, i) => sum + term(x, k[i]), 0);
const dot = (q, k) => addUp(q, k, (a, b) => a * b);

// A power of two, so that nothing is rounded: no square of what it leaves overflows or underflows.
const nearOne = (x) => {
  const largest = Math.max(0, ...x.map(Math.abs));
  return largest ? x.map((c) => c / 2 ** Math.floor(Math.log2(largest))) : x;
};

const SIMILARITIES = {
  gaussian(q, k) {
    const score = 0 - addUp(q, k, (a, b) => (a - b) * (a - b)) / 2;
    // What is no exact hit stays behind the exact hits, even where its square underflows.
    return score === 0 && q.some((x, i) => x !== k[i]) ? -Number.MIN_VALUE : score;
  },
  laplacian: (q, k) => 0 - addUp(q, k, (a, b) => Math.abs(a - b)),
  cosine(q, k) {
    [q, k] = [nearOne(q), nearOne(k)];
    const squares = dot(q, q) * dot(k, k);
    return squares ? Math.max(-1, Math.min(1, dot(q, k) / Math.sqrt(squares))) : 0;
  },
  dot,
  scaled_dot: (q, k, width = q.length) => dot(q, k) / Math.sqrt(Math.max(width, 1)),
};

// `width` is the keys' own, where coordinates that are 0 in all of them have been left out.
const score = (similarity, query, keys, width) => keys.map((key) => SIMILARITIES[similarity](query, key, width));

// (score - best) / T: 0 for the best, -Infinity for what is out. At T = 0 that leaves the best alone, at Infinity all.
function tempered(score, best, temperature) {
  if (score === -Infinity) return -Infinity;
  return score === best ? 0 : (score - best) / temperature;
}

// Shares that sum to 1, that of the silent entry included; `where` says which entries take part.
function weigh(scores, temperature, { where = null, nullScore = null } = {}) {
  const logits = scores.map((score, j) => (where && !where[j] ? -Infinity : score));
  const loudest = Math.max(-Infinity, ...logits);
  const silent = nullScore !== null && !(temperature === 0 && loudest >= nullScore);
  if (silent) logits.push(nullScore);
  const best = Math.max(-Infinity, ...logits);
  const masses = logits.map((score) => Math.exp(tempered(score, best, temperature)));
  const mass = masses.reduce((sum, x) => sum + x, 0);
  const weights = masses.map((x) => (mass ? x / mass : 0));
  return { nullWeight: silent ? weights.pop() : 0, weights };
}

// The blend of numbers, or of vectors; what has no share is not touched.
function blend(weights, values) {
  const mix = (numbers) => numbers.reduce((sum, x, j) => (weights[j] ? sum + weights[j] * x : sum), 0);
  if (!Array.isArray(values[0])) return mix(values);
  return values[0].map((_, c) => mix(values.map((value) => value[c])));
}

// On how many entries an answer rests: exp of the entropy of the shares, rescaled to sum to 1.
function effective(weights) {
  const mass = weights.reduce((sum, x) => sum + x, 0);
  if (!mass) return 0;
  return Math.exp(0 - weights.reduce((sum, x) => sum + (x ? (x / mass) * Math.log(x / mass) : 0), 0));
}

// Who wins: the best that takes part, the earlier among equals; -1 where none does.
function winner(scores, where = null) {
  let best = -1;
  scores.forEach((score, j) => {
    if ((!where || where[j]) && score > -Infinity && (best < 0 || score > scores[best])) best = j;
  });
  return best;
}

const transpose = (matrix) => matrix[0].map((_, j) => matrix.map((row) => row[j]));
const rowSums = (matrix) => matrix.map((row) => row.reduce((sum, x) => sum + x, 0));

// Everyone asks: one row for each query. Along the wrong axis the queries share, for each key.
function attention(queries, keys, temperature, { similarity = "scaled_dot", where = null, wrongAxis = false } = {}) {
  const scores = queries.map((query) => score(similarity, query, keys));
  const shares = (matrix) => matrix.map((row) => weigh(row, temperature, { where }).weights);
  return wrongAxis ? transpose(shares(transpose(scores))) : shares(scores);
}

// The numbers of np.random.RandomState(seed).normal(): Mersenne Twister, then Marsaglia's polar method.
function normals(seed) {
  const state = new Uint32Array(624);
  state[0] = seed;
  for (let i = 1; i < 624; i++) {
    state[i] = Math.imul(1812433253, state[i - 1] ^ (state[i - 1] >>> 30)) + i;
  }
  let at = 624;
  function word() {
    if (at === 624) {
      for (let i = 0; i < 624; i++) {
        const y = (state[i] & 0x80000000) | (state[(i + 1) % 624] & 0x7fffffff);
        state[i] = state[(i + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
      }
      at = 0;
    }
    let y = state[at++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }
  const uniform = () => ((word() >>> 5) * 67108864 + (word() >>> 6)) / 9007199254740992;
  let kept = null;
  return function normal() {
    if (kept !== null) {
      const x = kept;
      kept = null;
      return x;
    }
    let a, b, square;
    do {
      a = 2 * uniform() - 1;
      b = 2 * uniform() - 1;
      square = a * a + b * b;
    } while (square >= 1 || square === 0);
    const stretch = Math.sqrt((-2 * Math.log(square)) / square);
    kept = stretch * a;
    return stretch * b;
  };
}

// Random queries of width d, each with its own n random keys: all weights, raw and scaled.
function draws(seed, trials, n, d) {
  const normal = normals(seed);
  const vector = () => Array.from({ length: d }, normal);
  const queries = Array.from({ length: trials }, vector);
  const keys = Array.from({ length: trials }, () => Array.from({ length: n }, vector));
  const weights = (similarity) =>
    queries.map((query, i) => weigh(score(similarity, query, keys[i]), 1).weights);
  return { raw: weights("dot"), scaled: weights("scaled_dot") };
}

if (typeof module === "object") {
  module.exports = { SIMILARITIES, score, weigh, blend, effective, winner, transpose, rowSums, attention, normals, draws };
}
