/*
 * chart.js - line charts over steps or time in inline SVG: several runs in each, no bit lost.
 *
 * A chart is drawn when it comes into sight. All charts of a page share one view: the axis, its
 * range, the hidden runs, the smoothing, the cursor. A place on the axis is a step, or the
 * milliseconds that the run had computed for at the end of a step. A run is compared with the first
 * shown one, step by step: where their bits are equal its line is dashed over the other's, so that
 * both colours are seen; where they are not it is solid. NaN and infinities are marks at the edge.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
'use strict';

const InvarChart = (() => {
  const {html, svg, trim, format, formatTick, group, ticks, timeTicks, logTicks, clock, same}
    = InvarPage;
  const {decode, thinned, bitsAt, firstFrom, nearest, smoothed, equalBits} = InvarSeries;

  /* ---- the view that all charts share -------------------------------------------------------- */

  class View {
    constructor(runs, full) {
      this.timed = false; // the axis
      this.fill(runs, full);
      this.range = full;
      this.hidden = new Set();
      this.smooth = 0;
      this.charts = [];
      this.listeners = [];
      this.tip = document.getElementById('tip');
      this.sight = new IntersectionObserver(entries => {
        for (const entry of entries) entry.target.chart.seen(entry.isIntersecting);
      }, {rootMargin: '200px'});
      this.sizes = new ResizeObserver(entries => {
        for (const entry of entries) entry.target.chart.stale();
      });
    }

    fill(runs, full) {
      this.runs = runs; // {label, color, clock: [[step, ms]], marks: [{step, kind, text}]}
      this.steps = full; // [first, last] step of all runs
      this.time = [0, Math.max(1, ...runs.map(run => run.clock.length
        ? run.clock[run.clock.length - 1][1] : 0))];
    }

    /* There is more of the runs; where all was in sight, all is. */
    refill(runs, full) {
      const all = same(this.range, this.full);
      this.fill(runs, full);
      this.update(all ? {range: this.full} : {});
    }

    /* [first, last] place of the axis. */
    get full() {
      return this.timed ? this.time : this.steps;
    }

    setAxis(timed) {
      this.timed = timed;
      this.reset();
    }

    /* Where on the axis a run has a step. Between the steps that the clock has: in proportion. */
    place(run, step) {
      if (!this.timed) return step;
      const {clock: at} = this.runs[run];
      if (!at.length) return 0;
      const lo = firstFrom(at, step, one => one[0]);
      const [to, ms] = at[lo];
      const [from, before] = at[Math.max(lo - 1, 0)];
      const share = Math.min(1, Math.max(0, (step - from) / Math.max(to - from, 1)));
      return before + share * (ms - before);
    }

    name(place) {
      return this.timed ? clock(place) : `Step ${group(place)}`;
    }

    update(change) {
      Object.assign(this, change);
      for (const chart of this.charts) chart.stale();
      for (const listener of this.listeners) listener();
    }

    zoom(from, to) {
      const [first, last] = this.full;
      const lo = Math.max(first, Math.floor(Math.min(from, to))); // whole steps, milliseconds
      const hi = Math.min(last, Math.ceil(Math.max(from, to)));
      if (hi > lo) this.update({range: [lo, hi]});
    }

    reset() {
      this.update({range: this.full});
    }

    point(step) {
      for (const chart of this.charts) chart.cursor(step);
    }
  }

  /* ---- one chart ----------------------------------------------------------------------------- */

  const DASH = 5;
  const GLYPHS = { // around (0, 0)
    error: 'M-3-3 3 3M3-3-3 3', warning: 'M0-3.5 3.8 3H-3.8Z', resume: 'M-2.5-3.5 3 0-2.5 3.5Z',
    checkpoint: 'M0-2.6 2.6 0 0 2.6-2.6 0Z', nan: 'M-3.5-3.5 3.5 3.5M3.5-3.5-3.5 3.5',
    up: 'M0-4.5 4.2 3.5H-4.2Z', down: 'M0 4.5 4.2-3.5H-4.2Z',
  };
  let serial = 0;

  class Chart {
    /*
     * spec: {title, lines: [{run, series, label, minor, pair}], height, rug: show the runs' marks}
     * Lines of one label are compared with the first of them; where there are pairs, of their pair.
     */
    constructor(view, host, spec) {
      Object.assign(this, {view, host, spec, log: false, visible: false, dirty: true, frame: 0});
      Object.assign(this, {now: null, from: null}); // cursor; where a drag began
      this.id = `clip${serial++}`;
      this.svg = svg('svg', {tabindex: 0, role: 'img', 'aria-label': this.summary()});
      this.svg.chart = this;
      this.svg.style.setProperty('height', `${spec.height}px`); // until it is drawn
      host.append(this.svg);
      this.listen();
      view.charts.push(this);
      view.sight.observe(this.svg);
      view.sizes.observe(this.svg);
    }

    /* The same chart of more values. */
    refill(spec) {
      this.spec = spec;
      this.svg.setAttribute('aria-label', this.summary());
      this.stale();
    }

    /* It is not on the page any more. */
    end() {
      this.view.sight.unobserve(this.svg);
      this.view.sizes.unobserve(this.svg);
      this.view.charts = this.view.charts.filter(chart => chart !== this);
    }

    summary() {
      const main = this.spec.lines.filter(line => !line.minor && line.series.at.length);
      const last = main.map(line => {
        const {x, y} = decode(line.series);
        return `${this.view.runs[line.run].label}: ${format(y[y.length - 1])} ` +
          `at step ${x[x.length - 1]}`;
      });
      return `Chart of ${this.spec.title}. Last values: ${last.join('; ')}. ` +
        'Arrow keys move the cursor, plus and minus zoom, Escape resets.';
    }

    seen(visible) {
      this.visible = visible;
      if (visible && this.dirty) this.draw();
    }

    stale() {
      this.dirty = true;
      if (!this.visible || this.frame) return;
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
    }

    shown() {
      return this.spec.lines.filter(line => !this.view.hidden.has(line.run));
    }

    base(lines, line) {
      return lines.find(other => other.label === line.label && other.pair === line.pair);
    }

    /* {x, y}: places on the axis and values; kept until the axis changes. */
    points(line) {
      const {x, y} = decode(line.series);
      if (!this.view.timed) return {x, y};
      if (!line.timed) line.timed = x.map(step => this.view.place(line.run, step));
      return {x: line.timed, y};
    }

    drawable(value) {
      return Number.isFinite(value) && (!this.log || value > 0);
    }

    /* The least and the greatest value in the range, with some air. */
    extent(lines) {
      const [from, to] = this.view.range;
      let lo = Infinity;
      let hi = -Infinity;
      for (const line of lines) {
        const {x, y} = this.points(line);
        for (let i = 0; i < x.length; i++) {
          if (x[i] < from || x[i] > to || !this.drawable(y[i])) continue;
          lo = Math.min(lo, y[i]);
          hi = Math.max(hi, y[i]);
        }
      }
      if (lo > hi) return this.log ? [0.1, 10] : [-1, 1];
      if (this.log) {
        const air = lo === hi ? 2 : (hi / lo) ** 0.05;
        return [lo / air, hi * air];
      }
      if (lo === hi) return lo === 0 ? [-1, 1] : [lo - Math.abs(lo) / 10, hi + Math.abs(hi) / 10];
      const air = (hi - lo) * 0.06;
      return [lo >= 0 && lo < air ? -air / 2 : lo - air, hi + air];
    }

    /* Scales and margins for the present size. */
    layout(lines) {
      const width = Math.max(this.svg.clientWidth, 120);
      const rows = this.spec.rug
        ? this.view.runs.filter((run, i) => run.marks.length && !this.view.hidden.has(i)) : [];
      const height = this.spec.height + 11 * rows.length;
      const [lo, hi] = this.extent(lines);
      const y = this.log ? logTicks(lo, hi, 4) : ticks(lo, hi, this.spec.height / 40);
      const labels = y.at.map(value =>
        y.log ? trim(value.toExponential(0)) : formatTick(value, y.unit));
      const left = 14 + 6.6 * Math.max(3, ...labels.map(label => label.length));
      const right = lines.some(line => line.label) ? 38 : 12;
      const [from, to] = this.view.range;
      const box = {left, right: width - right, top: 14, bottom: height - 24 - 11 * rows.length};
      const scale = this.log ? Math.log : value => value;
      const span = scale(hi) - scale(lo);
      this.box = box;
      this.px = step => box.left + (step - from) / Math.max(to - from, 1) * (box.right - box.left);
      this.py = value => box.bottom - (scale(value) - scale(lo)) / span * (box.bottom - box.top);
      this.step = px => from + (px - box.left) / (box.right - box.left) * (to - from);
      return {width, height, rows, y, labels};
    }

    draw() {
      this.dirty = false;
      const lines = this.shown();
      const {width, height, rows, y, labels} = this.layout(lines);
      const box = this.box;
      this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
      this.svg.style.setProperty('height', `${height}px`);
      const clip = svg('clipPath', {id: this.id}, svg('rect', {x: box.left, y: box.top - 6,
        width: box.right - box.left, height: box.bottom - box.top + 12}));
      this.needle = svg('line', {class: 'needle', y1: box.top - 4, y2: box.bottom,
        visibility: 'hidden'});
      this.dots = svg('g', {});
      this.brush = svg('rect', {class: 'brush', y: box.top, width: 0,
        height: box.bottom - box.top});
      const data = svg('g', {'clip-path': `url(#${this.id})`}, this.rules(),
        lines.map(line => this.line(line)));
      this.svg.replaceChildren(clip, this.axes(y, labels, rows), this.brush, data,
        ...this.odd(lines), ...this.labels(lines), ...this.rug(rows), this.needle, this.dots);
      this.cursor(this.now);
    }

    axes(y, labels, rows) {
      const {left, right, bottom} = this.box;
      const out = svg('g', {class: 'axes'});
      const rule = (kind, x1, y1, x2, y2) => svg('line', {class: kind, x1, y1, x2, y2});
      y.at.forEach((value, i) => {
        const py = this.py(value);
        out.append(rule(value === 0 ? 'zero' : 'grid', left, py, right, py),
          svg('text', {x: left - 8, y: py + 3.5, 'text-anchor': 'end'}, labels[i]));
      });
      out.append(rule('base', left, bottom, right, bottom));
      const {timed, range} = this.view;
      for (const at of timed ? timeTicks(...range, (right - left) / 72).at
        : ticks(...range, (right - left) / 64, true).at) {
        const px = this.px(at);
        out.append(rule('base', px, bottom, px, bottom + 4), svg('text', {x: px,
          y: bottom + 11 * rows.length + 17, 'text-anchor': 'middle'}, timed ? clock(at)
          : group(at)));
      }
      return out;
    }

    /* Faint verticals where a run was resumed or had an error. */
    rules() {
      if (!this.spec.rug) return [];
      const [from, to] = this.view.range;
      const out = [];
      this.view.runs.forEach((run, i) => {
        if (this.view.hidden.has(i)) return;
        for (const {kind, step} of run.marks) {
          const at = this.view.place(i, step);
          if (at < from || at > to || (kind !== 'resume' && kind !== 'error')) continue;
          out.push(svg('line', {class: `rule ${kind}`, '--run': run.color, x1: this.px(at),
            x2: this.px(at), y1: this.box.top, y2: this.box.bottom}));
        }
      });
      return out.slice(0, 200);
    }

    /* The line of one run and metric: raw, and over it smoothed where asked for. */
    line(line) {
      const {x, y} = this.points(line);
      const run = this.view.runs[line.run];
      const dense = x.length > 2 * (this.box.right - this.box.left) ? ' dense' : '';
      const out = svg('g', {class: `line${line.minor ? ' minor' : dense}`, '--run': run.color});
      const base = this.base(this.shown(), line);
      const equal = base === line ? null : equalBits(line.series, base.series);
      if (this.view.smooth > 0 && x.length > 2) {
        const faint = this.trace(x, y, null);
        out.append(svg('path', {class: 'raw', d: faint.differ}));
        this.stroke(out, this.trace(x, smoothed(line.series, this.view.smooth), equal), line);
      } else {
        this.stroke(out, this.trace(x, y, equal), line);
      }
      return out;
    }

    stroke(out, {same, differ, points}, line) {
      const [run, runs] = line.pair === undefined ? [line.run, this.view.runs.length] : [1, 2];
      if (same) out.append(svg('path', {d: same, 'stroke-dashoffset': -DASH * (run - 1),
        'stroke-dasharray': `${DASH} ${DASH * (runs - 1)}`}));
      if (differ) out.append(svg('path', {d: differ}));
      if (points.length && points.length < (this.box.right - this.box.left) / 12)
        for (const [px, py] of points) out.append(svg('circle', {cx: px, cy: py, r: 2.4}));
    }

    /* Two paths: along points that are `equal` to another run's, and along the rest. */
    trace(x, y, equal) {
      const [from, to] = this.view.range;
      const first = Math.max(0, nearest(x, from) - 1);
      const path = {same: '', differ: '', points: []};
      let last = null; // {at, i, into}: the point before, and the path it was drawn into
      for (let i = first; i < x.length && (i === 0 || x[i - 1] <= to); i++) {
        if (!this.drawable(y[i])) {
          last = null;
          continue;
        }
        const at = `${this.px(x[i]).toFixed(1)} ${this.py(y[i]).toFixed(1)}`;
        if (x[i] >= from && x[i] <= to) path.points.push(at.split(' '));
        let into = null;
        if (last) {
          into = equal && equal[i] && equal[last.i] ? 'same' : 'differ';
          path[into] += last.into === into ? `L${at}` : `M${last.at}L${at}`;
        } else if (i + 1 === x.length || !this.drawable(y[i + 1])) {
          path.differ += `M${at}h.1`; // alone: the round cap makes it a dot
        }
        last = {at, i, into};
      }
      return path;
    }

    /* Marks for what no line can show: NaN, infinities, on a logarithmic axis zero and below. */
    odd(lines) {
      const [from, to] = this.view.range;
      return lines.map(line => {
        const {x, y} = this.points(line);
        let last = -Infinity;
        const out = svg('g', {class: 'odd', '--run': this.view.runs[line.run].color});
        const drawn = {nan: -Infinity, up: -Infinity, down: -Infinity};
        for (let i = 0; i < x.length; i++) {
          const at = this.px(x[i]);
          const kind = Number.isNaN(y[i]) ? 'nan' : y[i] > 0 ? 'up' : 'down';
          if (this.drawable(y[i]) || x[i] < from || x[i] > to || at - drawn[kind] < 5) continue;
          drawn[kind] = at;
          const py = {nan: this.box.top - 7, up: this.box.top + 1, down: this.box.bottom - 5}[kind];
          out.append(svg('path', {class: `glyph ${kind}`, d: GLYPHS[kind],
            transform: `translate(${at} ${py})`}));
          if (at - last > 44 && at - this.box.left > 36) // to the left of a cluster there is room
            out.append(svg('text', {x: at - 7, y: py + 4, 'text-anchor': 'end'},
              Number.isFinite(y[i]) ? '\u2264 0' : format(y[i])));
          last = at;
        }
        return out;
      });
    }

    /* Names of the lines, at their right end, where a chart has several metrics. */
    labels(lines) {
      const ends = new Map();
      for (const line of lines) {
        const {x, y} = this.points(line);
        const i = nearest(x, this.view.range[1]);
        if (!line.label || i < 0 || !this.drawable(y[i])) continue;
        const py = this.py(y[i]);
        if (!(ends.get(line.label) < py)) ends.set(line.label, py); // the highest of all runs
      }
      let last = Infinity;
      return [...ends].sort((a, b) => b[1] - a[1]).map(([label, py]) => {
        last = Math.min(py, last - 12);
        return svg('text', {class: 'end', x: this.box.right + 5, y: last + 3.5}, label);
      });
    }

    rug(rows) {
      const [from, to] = this.view.range;
      return rows.map((run, row) => {
        const out = svg('g', {class: 'rug', '--run': run.color});
        const drawn = {};
        for (const mark of run.marks) {
          const here = this.view.place(this.view.runs.indexOf(run), mark.step);
          const at = this.px(here);
          const room = mark.kind === 'checkpoint' ? 14 : 6;
          if (here < from || here > to || at - drawn[mark.kind] < room) continue;
          drawn[mark.kind] = at;
          out.append(svg('path', {class: `glyph ${mark.kind}`, d: GLYPHS[mark.kind],
            transform: `translate(${at} ${this.box.bottom + 9 + 11 * row})`},
          svg('title', {}, `step ${mark.step}: ${mark.text}`)));
        }
        return out;
      });
    }

    /* ---- cursor, tooltip, zoom ---- */

    listen() {
      const on = (type, take) => this.svg.addEventListener(type, take);
      on('pointermove', event => this.moved(event));
      on('pointerdown', event => {
        if (event.pointerType !== 'touch' && event.button === 0) this.from = this.at(event);
      });
      on('pointerup', event => this.released(event));
      on('pointerleave', () => this.leave());
      on('dblclick', () => this.view.reset());
      on('blur', () => this.leave());
      on('keydown', event => this.key(event));
    }

    at(event) {
      const px = event.clientX - this.svg.getBoundingClientRect().left;
      return Math.min(Math.max(px, this.box.left), this.box.right);
    }

    moved(event) {
      const px = this.at(event);
      if (this.from !== null && event.buttons & 1) {
        this.brush.setAttribute('x', Math.min(px, this.from));
        this.brush.setAttribute('width', Math.abs(px - this.from));
      }
      this.show(this.snap(this.step(px)), event.clientX, event.clientY);
    }

    released(event) {
      const from = this.from;
      const px = this.at(event);
      this.unbrush();
      if (from !== null && Math.abs(px - from) > 5) this.view.zoom(this.step(from), this.step(px));
    }

    unbrush() {
      this.from = null;
      if (this.brush) this.brush.setAttribute('width', 0);
    }

    leave() {
      this.unbrush();
      this.view.point(null);
      this.view.tip.hidden = true;
    }

    key(event) {
      const [from, to] = this.view.range;
      const now = this.now === null ? from : this.now;
      const far = event.shiftKey ? 10 : 1;
      const moves = {ArrowLeft: () => this.along(now, -far), ArrowRight: () => this.along(now, far),
        Home: () => this.snap(from), End: () => this.snap(to)};
      if (event.key in moves) this.go(moves[event.key]());
      else if (event.key === '+') this.view.zoom(now - (now - from) / 2, now + (to - now) / 2);
      else if (event.key === '-') this.view.zoom(from - (to - from) / 2, to + (to - from) / 2);
      else if (event.key === 'Escape') this.view.reset();
      else return;
      event.preventDefault();
    }

    /* So many points to the right of a place, or to the left, over all lines; it stays in range. */
    along(now, count) {
      const [from, to] = this.view.range;
      const side = Math.sign(count);
      const places = new Set(this.shown().flatMap(line => [...this.points(line).x])
        .filter(at => (at - now) * side > 0 && at >= from && at <= to));
      const order = [...places].sort((a, b) => (a - b) * side);
      return order.length ? order[Math.min(Math.abs(count), order.length) - 1] : now;
    }

    go(place) {
      if (place === null) return;
      const rect = this.svg.getBoundingClientRect();
      this.show(place, rect.left + this.px(place), rect.top + this.box.top);
    }

    /* The place of the nearest point of any line, inside the range; null: there is none. */
    snap(wanted) {
      const [from, to] = this.view.range;
      let best = null;
      for (const line of this.shown()) {
        const {x} = this.points(line);
        const i = nearest(x, wanted);
        if (i < 0 || x[i] < from || x[i] > to) continue;
        if (best === null || Math.abs(x[i] - wanted) < Math.abs(best - wanted)) best = x[i];
      }
      return best;
    }

    show(step, clientX, clientY) {
      if (step === null) return;
      this.view.point(step);
      const tip = this.view.tip;
      tip.replaceChildren(html('p', {class: 'step'}, html('b', {}, this.view.name(step)),
        ` ${this.spec.title}`), html('table', {}, html('tbody', {}, this.rows(step))),
      ...this.notes(step));
      tip.hidden = false;
      const {width, height} = tip.getBoundingClientRect();
      const left = clientX + 16 + width > innerWidth ? clientX - width - 16 : clientX + 16;
      const top = Math.min(clientY + 16, innerHeight - height - 8);
      tip.style.left = `${Math.max(4, left)}px`;
      tip.style.top = `${Math.max(4, top)}px`;
    }

    /* One row a line: run, value, bits, and whether the first run has the same bits. */
    rows(step) {
      const lines = this.shown();
      const find = line => {
        const {x, y} = this.points(line);
        const i = nearest(x, step);
        // of a series with left-out points, and in time, the nearest; else only what is at this step
        if (i < 0 || (x[i] !== step && !this.view.timed && !thinned(line.series))) return null;
        return {at: x[i], step: decode(line.series).x[i], value: y[i], bits: bitsAt(line.series, i)};
      };
      return lines.map(line => {
        const run = this.view.runs[line.run];
        const base = this.base(lines, line);
        const here = find(line);
        const first = find(base);
        const equal = here && first && base !== line && here.step === first.step &&
          here.bits === first.bits;
        return html('tr', {'--run': run.color}, html('td', {}, html('i', {class: 'swatch'})),
          html('td', {}, run.label, line.label ? html('small', {}, ` ${line.label}`) : null),
          html('td', {class: 'num'}, here ? format(here.value, 9) : '\u2013'),
          html('td', {class: 'mono'}, here ? here.bits : ''),
          html('td', {class: 'note'}, here && (this.view.timed || here.at !== step)
            ? `step ${group(here.step)}` : equal ? 'same bits' : ''));
      });
    }

    /* What else happened at this step. */
    notes(step) {
      const out = [];
      this.view.runs.forEach((run, i) => {
        if (this.view.hidden.has(i)) return;
        for (const mark of run.marks)
          if (this.view.place(i, mark.step) === step) out.push(html('p', {class: `mark ${mark.kind}`,
            '--run': run.color}, html('i', {class: 'swatch'}), mark.text));
      });
      return out.slice(0, 6);
    }

    cursor(step) {
      this.now = step;
      if (!this.needle) return;
      const inside = step !== null && step >= this.view.range[0] && step <= this.view.range[1];
      this.needle.setAttribute('visibility', inside ? 'visible' : 'hidden');
      this.dots.replaceChildren();
      if (!inside || !this.visible) return;
      this.needle.setAttribute('x1', this.px(step));
      this.needle.setAttribute('x2', this.px(step));
      for (const line of this.shown()) {
        const {x, y} = this.points(line);
        const i = nearest(x, step);
        if (i >= 0 && x[i] === step && this.drawable(y[i]))
          this.dots.append(svg('circle', {class: 'dot', '--run': this.view.runs[line.run].color,
            cx: this.px(step), cy: this.py(y[i]), r: 3.5}));
      }
    }
  }

  return {View, Chart, GLYPHS};
})();
