/*
 * ab.js - fills the page of `invar ab` from the JSON that stands in it.
 *
 * The data is what `invar ab --json` prints, and with it `runs`: side, seed and series of each run
 * whose curves are shown. Text enters the page by textContent only. When all is drawn the root
 * element has data-ready; a failure stands there as data-failed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
'use strict';

(() => {
  const {html, format, group, byId, plural, tag, note, number, hash, table, row, pairs} = InvarPage;
  const root = document.documentElement;
  const SIDES = ['a', 'b'];
  const COLORS = {a: 'var(--run0)', b: 'var(--run1)'};
  const TONES = {identical: 'good', different: 'bad', nondeterministic: 'bad', untestable: 'warn',
    stopped: 'warn'};
  const CHARTS_OPEN = 24; // metrics drawn without being asked for
  const MIB = 1048576;

  /* ---- small things -------------------------------------------------------------------------- */

  const show = id => { byId(id).hidden = false; };
  const letter = side =>
    html('span', {class: 'letter', '--run': COLORS[side]}, side.toUpperCase());

  /* ---- head ---------------------------------------------------------------------------------- */

  function card(data, side) {
    const what = data.sides[side];
    const gate = data.gates[side];
    return html('article', {class: 'card', '--run': COLORS[side]},
      html('h3', {}, letter(side), what.recipe_named || what.given),
      html('p', {class: 'tags'}, tag(what.kind),
        gate ? tag(gate.same ? 'repeats itself' : 'does not repeat itself',
          gate.same ? 'good' : 'bad') : null),
      pairs([
        ['side', what.recipe_named && what.given],
        ['commit', what.commit && hash(what.commit)],
        ['subject', what.subject],
        ['author', what.author],
        ['program', what.binary && hash(what.binary)],
        ['built', what.build_cached ? 'before' : what.build_s
          ? `in ${format(what.build_s, 3)} s` : null],
        ['again', gate && `seed ${gate.seed}, with ${gate.with}: ${gate.headline}`]]));
  }

  function summary(data) {
    const at = data.headline.indexOf(': ');
    const rest = data.headline.slice(at + 2);
    byId('pill').append(tag(data.verdict, `big ${TONES[data.verdict]}`));
    byId('verdict').textContent = rest.charAt(0).toUpperCase() + rest.slice(1);
    document.title = `${data.headline} \u00b7 Invar A/B`;
    byId('cards').append(...SIDES.map(side => card(data, side)));
  }

  function place({place: at}) {
    if (!at) return;
    show('place');
    byId('place-body').append(html('article', {class: 'card', '--run': COLORS.b}, pairs([
      ['step', group(at.step)],
      ['point', html('code', {}, at.point)],
      ['phase', at.phase],
      ['layer', at.layer === null ? null : String(at.layer)],
      ['op', at.op && html('code', {}, at.op)],
      ['parts', at.fused],
      ['tensor', [at.kind, at.dtype, at.shape].filter(Boolean).join(' ')],
      ['A', at.before && hash(at.before)],
      ['B', at.after && hash(at.after)],
      ['at this step', `${plural(at.points_different, 'point')} of ` +
        `${group(at.points_different + at.points_equal)} differ` +
        (at.fine ? '; every point was recorded' : '')]])));
  }

  /* ---- effects ------------------------------------------------------------------------------- */

  /* Mean, error and signs of one quantity: three cells. */
  function sum(one) {
    if (!one.pairs) return ['\u2013', '', ''];
    const way = one.mean > 0 ? 'up' : one.mean < 0 ? 'down' : '';
    return [html('span', {class: `num ${way}`}, format(one.mean, 5)),
      number(one.error === null ? '\u2013' : `\u00b1 ${format(one.error, 3)}`),
      number(`${one.higher} / ${one.lower} / ${one.equal}`)];
  }

  function effects(data) {
    if (!data.steps) return;
    const {first, last, tail_first: tail} = data.steps;
    const equal = data.equal_metrics.length;
    const shown = [...data.effects.filter(one => one.pinned), ...data.pinned_equal,
      ...data.effects.filter(one => !one.pinned)];
    show('effect');
    byId('effect-note').textContent = `Of B against A, ${plural(data.seeds.length, 'seed')}: the ` +
      'mean of b \u2212 a, its standard error, and the seeds in which b is higher, lower, equal. ' +
      `At the last step, and for the mean over the steps ${group(tail)} to ${group(last)} of ` +
      `${group(first)} to ${group(last)}.`;
    if (shown.length) byId('effect-body').append(table('Effect on metrics',
      ['metric', 'A', 'B', `b \u2212 a at step ${group(last)}`, 'error', '+ / \u2212 / =',
        'b \u2212 a, last tenth', 'error', '+ / \u2212 / =', ''],
      shown.map(one => row(html('code', {}, one.name),
        number(one.last.mean_a === null ? '\u2013' : format(one.last.mean_a, 6)),
        number(one.last.mean_b === null ? '\u2013' : format(one.last.mean_b, 6)),
        ...sum(one.last), ...sum(one.tail),
        [data.pinned_equal.includes(one) ? 'equal in every bit ' : '',
          one.step !== null && one.step !== last ? `step ${group(one.step)} ` : '',
          one.odd ? `${plural(one.odd, 'value')} left out` : ''].join(''))), 'effect'));
    byId('effect-body').append(html('details', {},
      html('summary', {}, `${plural(equal, 'metric')} equal in every bit`),
      html('ul', {class: 'names'}, data.equal_metrics.map(name =>
        html('li', {}, html('code', {}, name))))));
  }

  /* ---- curves -------------------------------------------------------------------------------- */

  function chart(view, host, data, name) {
    const lines = data.runs.flatMap((run, i) => run.series.filter(one => one.name === name)
      .map(series => ({run: i, series, label: '', pair: run.seed})));
    const figure = html('figure', {class: 'chart small', 'data-name': name.toLowerCase()});
    const equal = data.equal_metrics.includes(name);
    const log = html('button', {class: 'small', type: 'button', title: 'logarithmic axis',
      'aria-pressed': 'false', onclick: () => {
        drawn.log = !drawn.log;
        log.setAttribute('aria-pressed', String(drawn.log));
        drawn.stale();
      }}, 'log');
    figure.append(html('figcaption', {}, html('span', {class: 'what'},
      html('span', {class: 'name'}, name)),
    html('span', {class: 'side'}, equal ? tag('same bits', 'good') : null, log)));
    host.append(figure);
    const drawn = new InvarChart.Chart(view, figure, {title: name, lines, height: 170});
  }

  function search(total) {
    const wanted = byId('metric-search').value.trim().toLowerCase();
    let found = 0;
    [...byId('charts').children].forEach((figure, i) => {
      figure.hidden = wanted ? !figure.dataset.name.includes(wanted) : i >= CHARTS_OPEN;
      found += figure.hidden ? 0 : 1;
    });
    byId('metric-count').textContent = `${group(found)} of ${plural(total, 'metric')}`;
  }

  function bar(data, view) {
    const legend = SIDES.map(side => {
      const button = html('button', {class: 'run', type: 'button', '--run': COLORS[side],
        title: 'show or hide this side', 'aria-pressed': 'true', onclick: () => {
          const hide = button.getAttribute('aria-pressed') === 'true';
          data.runs.forEach((run, i) => {
            if (run.side !== side) return;
            if (hide) view.hidden.add(i);
            else view.hidden.delete(i);
          });
          button.setAttribute('aria-pressed', String(!hide));
          view.update({});
        }}, html('i', {class: 'swatch'}),
      html('span', {}, `${side.toUpperCase()} ` +
        (data.sides[side].recipe_named || data.sides[side].given)));
      return button;
    });
    const value = html('output', {}, 'off');
    const slider = html('input', {type: 'range', min: 0, max: 0.99, step: 0.01, value: 0});
    slider.addEventListener('input', () => {
      const smooth = Number(slider.value);
      value.textContent = smooth ? smooth.toFixed(2) : 'off';
      view.update({smooth});
    });
    const reset = html('button', {type: 'button', hidden: true, onclick: () => view.reset()});
    view.listeners.push(() => {
      reset.hidden = view.range[0] === view.full[0] && view.range[1] === view.full[1];
      reset.textContent = `Steps ${view.range.map(group).join(' to ')}: show all`;
    });
    byId('bar').append(html('div', {class: 'legend'}, legend), reset,
      html('label', {class: 'smooth'}, 'Smoothing', slider, value));
  }

  function curves(data) {
    if (!data.runs.length || !data.steps) return null;
    const {first, last} = data.steps;
    const view = new InvarChart.View(data.runs.map(run => ({color: COLORS[run.side], marks: [],
      clock: [], label: `${run.side.toUpperCase()}, seed ${run.seed}`})),
    [first, Math.max(last, first + 1)]);
    const names = [...new Set([...data.effects.filter(one => one.pinned), ...data.pinned_equal,
      ...data.effects].map(one => one.name).concat(data.equal_metrics))];
    const few = data.runs.length < 2 * data.seeds.length;
    show('curves');
    bar(data, view);
    byId('curves-note').textContent = 'A line a seed. Drag to zoom, double-click to reset. A line ' +
      'in both colours: equal bits.' +
      (few ? ` Of the first ${group(data.runs.length / 2)} seeds.` : '');
    for (const name of names) chart(view, byId('charts'), data, name);
    byId('metric-search').addEventListener('input', () => search(names.length));
    search(names.length);
    return view;
  }

  /* ---- tables -------------------------------------------------------------------------------- */

  function seeds(data) {
    if (!data.seeds.some(one => one.headline)) return;
    show('seeds');
    byId('seeds-body').append(table('Seed by seed',
      ['seed', 'rollout seed', 'verdict', 'first step that differs', 'in words'],
      data.seeds.map(one => row(number(String(one.seed)), number(String(one.rollout_seed)),
        one.same === null ? '' : tag(one.same ? 'identical' : 'different',
          one.same ? 'good' : 'bad'),
        number(one.first === null ? '\u2013' : group(one.first)), one.headline || ''))));
  }

  function facts(data) {
    const value = text => html('span', {class: 'value'}, text === null ? '\u2013' : text);
    byId('facts-body').append(data.facts.length
      ? table('Facts that differ', ['', letter('a'), letter('b')], [...data.facts].sort((x, y) =>
        y.is_key - x.is_key).map(one =>
        row(html('span', {class: 'fact'}, html('small', {}, one.scope), one.key), value(one.a),
          value(one.b))))
      : note('No recorded fact differs.'));
    if (data.facts_different > data.facts.length) byId('facts-body').append(
      note(`and ${group(data.facts_different - data.facts.length)} more`));
  }

  function cost(data) {
    if (data.ratios.time === null) return;
    const of = take => SIDES.map(side => number(take(data.sides[side])));
    show('cost');
    byId('cost-body').append(table('Time and memory', ['', letter('a'), letter('b'), 'B / A'], [
      row('wall clock of all seeds', ...of(one => `${format(one.run_s, 4)} s`),
        number(format(data.ratios.time, 4))),
      row('memory at most', ...of(one => `${format(one.peak_bytes / MIB, 4)} MiB`),
        number(data.ratios.memory === null ? '\u2013' : format(data.ratios.memory, 4))),
      row('runs that were there already', ...of(one => String(one.runs_cached)), '')]));
  }

  function nav() {
    for (const section of document.querySelectorAll('main section[id]')) {
      const title = section.querySelector('h2');
      if (title && !section.hidden)
        byId('nav').append(html('a', {href: `#${section.id}`}, title.textContent));
    }
  }

  function build() {
    const data = JSON.parse(byId('data').textContent);
    summary(data);
    place(data);
    effects(data);
    const view = curves(data);
    seeds(data);
    facts(data);
    cost(data);
    nav();
    if (view) addEventListener('beforeprint', () => view.charts.forEach(one => one.draw()));
    // two frames later the charts in sight are drawn
    requestAnimationFrame(() => requestAnimationFrame(() => root.setAttribute('data-ready', '')));
  }

  addEventListener('error', event => root.setAttribute('data-failed', event.message));
  build();
})();
