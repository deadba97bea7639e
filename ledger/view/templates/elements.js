/*
 * elements.js - what the scripts of the report make pages of: elements, numbers as text, tables.
 *
 * Text of the ledger enters the page by textContent only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
'use strict';

const InvarPage = (() => {
  const COLORS = 8; // that report.css has for runs

  /* ---- elements ------------------------------------------------------------------------------ */

  function fill(node, props, children) {
    for (const [key, value] of Object.entries(props || {})) {
      if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
      else if (key.startsWith('--')) node.style.setProperty(key, value);
      else if (value !== false && value !== null) node.setAttribute(key, value);
    }
    node.append(...children.flat(Infinity).filter(child => child !== null));
    return node;
  }

  /* An element of HTML, of SVG; `--x` sets a custom property, `onx` adds a listener. */
  function html(tag, props, ...children) {
    return fill(document.createElement(tag), props, children);
  }

  function svg(tag, props, ...children) {
    return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), props, children);
  }

  /* ---- numbers ------------------------------------------------------------------------------- */

  function trim(text) {
    const [mantissa, exponent] = text.split('e');
    const short = mantissa.includes('.') ? mantissa.replace(/\.?0+$/, '') : mantissa;
    const power = exponent === undefined ? '' : 'e' + exponent.replace('+', '');
    return (short + power).replace(/-/g, '\u2212');
  }

  function group(value) {
    return String(value).replace(/\B(?=(\d{3})+$)/g, '\u202f').replace('-', '\u2212');
  }

  function format(value, digits = 6) {
    if (Number.isNaN(value)) return 'NaN';
    if (!Number.isFinite(value)) return value > 0 ? '+\u221e' : '\u2212\u221e';
    if (value === 0) return Object.is(value, -0) ? '\u22120' : '0';
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e12) return group(value);
    return trim(size >= 1e6 || size < 1e-3 ? value.toExponential(digits - 1)
      : value.toPrecision(digits));
  }

  function formatTick(value, unit) {
    if (value === 0) return '0';
    if (Math.abs(value) >= 1e5 || unit < 1e-4) return trim(value.toExponential(2));
    if (unit >= 1) return group(Math.round(value));
    return trim(value.toFixed(Math.max(0, -Math.floor(Math.log10(unit) + 1e-9))));
  }

  /* Round numbers from lo to hi, at least two and about `count`; whole ones for steps. */
  function ticks(lo, hi, count, whole) {
    const rough = Math.max((hi - lo) / Math.max(count, 1), whole ? 1 : Number.MIN_VALUE);
    const power = 10 ** Math.floor(Math.log10(rough));
    const unit = power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999);
    const first = Math.ceil(lo / unit - 1e-9);
    const last = Math.floor(hi / unit + 1e-9);
    if (last === first && count < 32 && !(whole && unit === 1))
      return ticks(lo, hi, count * 2, whole);
    const at = [];
    for (let i = first; i <= last && at.length < 64; i++) at.push(i * unit);
    return {unit, at};
  }

  function logTicks(lo, hi, count) {
    const from = Math.ceil(Math.log10(lo) - 1e-9);
    const to = Math.floor(Math.log10(hi) + 1e-9);
    if (to - from < 1) return ticks(lo, hi, count);
    const out = [];
    const stride = Math.ceil((to - from + 1) / (count + 1));
    for (let i = from; i <= to; i += stride) out.push(10 ** i);
    return {unit: out[0], at: out, log: true};
  }

  const CLOCK = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3,
    300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 10800e3, 21600e3, 43200e3, 86400e3]; // ms

  /* The same of milliseconds, as a clock has them. */
  function timeTicks(lo, hi, count) {
    const rough = (hi - lo) / Math.max(count, 1);
    const day = CLOCK[CLOCK.length - 1];
    const unit = CLOCK.find(one => one >= rough * 0.999) || day * Math.ceil(rough / day);
    const at = [];
    for (let i = Math.ceil(lo / unit - 1e-9); i * unit <= hi && at.length < 64; i++)
      at.push(i * unit);
    return {unit, at};
  }

  /* 1.5 s, 4:30, 1:04:30, 2 d 3:00:00 */
  function clock(ms) {
    if (ms < 60e3) return `${trim((ms / 1e3).toFixed(3))} s`;
    const two = value => String(Math.floor(value)).padStart(2, '0');
    const [days, hours] = [Math.floor(ms / 86400e3), Math.floor(ms / 3600e3) % 24];
    const minutes = ms / 60e3 % 60;
    const rest = `${two(minutes)}:${two(ms / 1e3 % 60)}`;
    if (days) return `${group(days)} d ${hours}:${rest}`;
    return hours ? `${hours}:${rest}` : rest.replace(/^0/, '');
  }

  /* ---- parts of a page ----------------------------------------------------------------------- */

  const byId = id => document.getElementById(id);
  const plural = (n, one, many) => `${group(n)} ${n === 1 ? one : many || `${one}s`}`;
  const color = run => `var(--run${run % COLORS})`;
  const swatch = run => html('i', {class: 'swatch', '--run': color(run)});
  const tag = (text, tone) => html('b', {class: `tag ${tone || ''}`}, text);
  const note = text => html('p', {class: 'note'}, text);
  const number = text => html('span', {class: 'num'}, text);
  const hash = (text, about) =>
    html('code', {class: 'hash', title: about ? `${about}: ${text}` : text}, text);
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const stepsOf = run => run.last < 0 ? 0 : run.last - run.first + 1;
  /*
   * These children instead of those that were there. A child that is there already stays where it
   * is, and so does one that is no different: what somebody has focused, selected or opened in it is
   * left alone. So a child with listeners is made once, or its listeners know of no older data.
   */
  function settle(node, children) {
    const wanted = children.flat(Infinity).filter(child => child !== null && child !== false)
      .map(child => child instanceof Node ? child : document.createTextNode(child));
    const stay = new Set(wanted);
    let here = node.firstChild;
    const pass = act => {
      const next = here.nextSibling;
      act();
      here = next;
    };
    for (const child of wanted) {
      while (here && child.parentNode === node && !stay.has(here)) pass(() => here.remove());
      if (here === child) pass(() => {});
      else if (!here || stay.has(here)) node.insertBefore(child, here);
      else pass(() => here.isEqualNode(child) || here.replaceWith(child));
    }
    while (here) pass(() => here.remove());
  }

  const put = (id, ...children) => settle(byId(id), children);

  function duration(ms) {
    if (ms >= 86400e3) return `${Math.floor(ms / 86400e3)} d ${Math.floor(ms / 3600e3) % 24} h`;
    if (ms >= 3600e3) return `${Math.floor(ms / 3600e3)} h ${Math.floor(ms / 60e3) % 60} min`;
    if (ms >= 120e3) return `${Math.floor(ms / 60e3)} min ${Math.floor(ms / 1e3) % 60} s`;
    const [size, unit] = ms >= 1e3 ? [1e3, 's'] : ms >= 1 ? [1, 'ms'] : [1e-3, '\u00b5s'];
    return `${Number((ms / size).toPrecision(3))} ${unit}`;
  }

  function when(ms) {
    return new Date(ms).toISOString().replace('T', ' ').replace(/\.\d+Z$/, ' UTC');
  }

  /* A box that scrolls by itself, also with the keyboard. */
  function scroller(label, inside) {
    return html('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label}, inside);
  }

  function table(label, heads, rows, kind) {
    const head = html('tr', {}, heads.map(text => html('th', {scope: 'col'}, text)));
    return scroller(label, html('table', {class: kind || null}, html('thead', {}, head), html('tbody', {}, rows)));
  }

  function row(...cells) {
    return html('tr', {}, cells.map(cell => html('td', {}, cell)));
  }

  /* Names and values; what has no value is left out. */
  function pairs(list, wide) {
    return html('dl', {class: wide ? 'wide' : null}, list
      .filter(([, value]) => value !== null && value !== '')
      .map(([name, value]) => html('div', {}, html('dt', {}, name), html('dd', {}, value))));
  }

  function runName(data, i) {
    return html('span', {}, swatch(i), data.runs[i].label);
  }

  /* A button that is pressed or not; `act` returns which from now on. */
  function toggle(inside, props, pressed, act) {
    const press = now => button.setAttribute('aria-pressed', String(now));
    const button = html('button', {...props, type: 'button', onclick: () => press(act())}, inside);
    press(pressed);
    return button;
  }

  /* Adds or removes; true: it is in the set now. */
  function flip(set, item) {
    return set.delete(item) ? false : Boolean(set.add(item));
  }

  return {html, svg, trim, group, format, formatTick, ticks, timeTicks, logTicks, clock, duration,
    when, byId, settle, put, plural, color, swatch, tag, note, number, hash, same, stepsOf, scroller, table,
    row, pairs, runName, toggle, flip};
})();
