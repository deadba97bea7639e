/*
 * series.js - values over steps, as the page has them: no bit is lost on the way.
 *
 * A series comes as the differences of its steps and the IEEE-754 patterns of its values in
 * hexadecimal; both are decoded when they are first asked for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
'use strict';

const InvarSeries = (() => {
  const word = new DataView(new ArrayBuffer(8));

  /* The number with this pattern of 16 hexadecimal digits. */
  function double(bits) {
    word.setUint32(0, parseInt(bits.slice(0, 8), 16));
    word.setUint32(4, parseInt(bits.slice(8), 16));
    return word.getFloat64(0);
  }

  function bitsAt(series, i) {
    return series.bits.slice(16 * i, 16 * i + 16);
  }

  /* {x, y}: steps and values. The bits themselves stay in the text. */
  function decode(series) {
    if (series.points) return series.points;
    const count = series.at.length;
    const x = new Float64Array(count);
    const y = new Float64Array(count);
    for (let i = 0, step = 0; i < count; i++) {
      x[i] = step += series.at[i];
      y[i] = double(bitsAt(series, i));
    }
    series.points = {x, y};
    return series.points;
  }

  const thinned = series => series.at.length < series.count;
  const zero = series => series.at.length > 0 && /^0*$/.test(series.bits);

  /* The value that all steps have; null: they have several. NaN has no claim to be one. */
  function constant(series) {
    const bits = bitsAt(series, 0);
    return !series.odd && series.at.length > 0 && series.bits === bits.repeat(series.at.length)
      ? double(bits) : null;
  }

  /* The index of the first of the ascending values that is not less, or else of the last. */
  function firstFrom(list, value, of = one => one) {
    let lo = 0;
    let hi = list.length - 1;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (of(list[mid]) < value) lo = mid + 1;
      else hi = mid;
    }
    return hi;
  }

  /* The index of the point nearest to a place; -1: there is none. */
  function nearest(x, step) {
    const lo = firstFrom(x, step);
    return lo > 0 && step - x[lo - 1] < x[lo] - step ? lo - 1 : lo;
  }

  /* Exponential moving average; a gap of n steps counts as n. What is not finite is passed by. */
  function smoothed(series, factor) {
    const {x, y} = decode(series);
    const out = new Float64Array(y.length);
    let sum = 0;
    let weight = 0;
    let last = x[0];
    for (let i = 0; i < y.length; i++) {
      if (!Number.isFinite(y[i])) {
        out[i] = y[i];
        continue;
      }
      const keep = factor ** Math.max(1, x[i] - last);
      sum = sum * keep + y[i] * (1 - keep);
      weight = weight * keep + 1 - keep;
      last = x[i];
      out[i] = sum / weight;
    }
    return out;
  }

  /* For each point of `a` whether `b` has the same bits at the same step. */
  function equalBits(a, b) {
    const ax = decode(a).x;
    const bx = decode(b).x;
    const out = new Uint8Array(ax.length);
    for (let i = 0, j = 0; i < ax.length; i++) {
      while (j < bx.length && bx[j] < ax[i]) j++;
      out[i] = j < bx.length && bx[j] === ax[i] && bitsAt(a, i) === bitsAt(b, j) ? 1 : 0;
    }
    return out;
  }

  /* The first step at which both have a value and other bits; null: none. */
  function firstDifference(a, b) {
    const ax = decode(a).x;
    const bx = decode(b).x;
    for (let i = 0, j = 0; i < ax.length && j < bx.length;) {
      if (ax[i] === bx[j] && bitsAt(a, i) !== bitsAt(b, j)) return ax[i];
      if (ax[i] <= bx[j]) i++;
      else j++;
    }
    return null;
  }

  return {double, bitsAt, decode, thinned, zero, constant, firstFrom, nearest, smoothed, equalBits,
    firstDifference};
})();
