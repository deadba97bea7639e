/*
 * curves.js - the charts of a report: which metrics are drawn, which are one line of a table.
 *
 * A metric that never changes in any run is no curve: its value stands in a table.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
'use strict';

const InvarCurves = (() => {
  const {html, svg, format, group, byId, settle, put, plural, color, tag, same, stepsOf, table, row,
    runName, toggle, flip} = InvarPage;
  const {decode, thinned, zero, constant, firstDifference} = InvarSeries;
  const {GLYPHS} = InvarChart;

  /* What is drawn first: of `any` the first metric that a run has, of `all` every one; of `below`
     those whose names go on from there. */
  const FEATURED = [
    {title: 'Reward', any: ['rollout/raw_reward', 'rollout/rewards']},
    {title: 'Parts of the reward', below: 'rollout/reward/'},
    {title: 'KL divergence', any: ['train/kl_loss', 'train/ppo_kl']},
    {title: 'Gradient norm', any: ['train/grad_norm']},
    {title: 'Entropy', any: ['train/entropy_loss', 'rollout/entropy']},
    {title: 'Log-prob difference', all: [['train/logp_diff_max', 'max'],
      ['train/logp_diff_p99', 'p99'], ['train/train_rollout_logprob_abs_diff', 'mean']]},
    {title: 'Response length', all: [['rollout/response_len/mean', 'mean'],
      ['rollout/response_len/max', 'max'], ['rollout/response_len/min', 'min']]},
    {title: 'Loss', any: ['train/loss', 'train/pg_loss']},
  ];
  const FEATURED_EVALUATIONS = 6;
  const OPEN_METRICS = 40; // up to so many the groups of the others are unfolded

  /* ---- one chart ----------------------------------------------------------------------------- */

  /* What can be said about all runs' values. Times and speeds have no claim to be equal. */
  function chip(lines) {
    const main = lines.filter(line => !line.minor);
    if (main.every(line => zero(line.series))) return tag('exactly 0', 'good');
    if (main.length < 2 || ['gauge', 'time'].includes(main[0].series.kind)) return null;
    const apart = main.slice(1).map(line => firstDifference(main[0].series, line.series))
      .filter(step => step !== null);
    const some = main.some(line => thinned(line.series));
    if (apart.length) return tag(`${some ? 'differ at' : 'part at'} ${group(Math.min(...apart))}`);
    return tag(some ? 'same bits where shown' : 'same bits', 'good');
  }

  function lastValue(series) {
    const {y} = decode(series);
    return y.length
      ? html('span', {class: 'last', title: 'last value'}, format(y[y.length - 1], 5)) : null;
  }

  const cards = new Map(); // charts that are on the page, by their titles and names
  const folds = new Map(); // of groups, by what their names begin with

  function makeCard(view, spec) {
    const figure = html('figure', {class: spec.rug ? 'chart' : 'chart small',
      'data-name': spec.names.join(' ').toLowerCase()});
    const log = toggle('log', {class: 'small', title: 'logarithmic axis'}, false, () => {
      chart.log = !chart.log;
      chart.stale();
      return chart.log;
    });
    const side = html('span', {class: 'side'});
    figure.append(html('figcaption', {},
      html('span', {class: 'what'}, html('span', {class: 'name'}, spec.title),
        spec.rug ? html('code', {}, spec.names[0]) : null), side));
    const chart = new InvarChart.Chart(view, figure, spec);
    return {figure, chart, side, log};
  }

  /* A chart that was there before has the values of now, and is otherwise as it was left. */
  function chartCard(view, spec) {
    const key = [spec.title, ...spec.names].join('\n');
    const card = cards.get(key) || makeCard(view, spec);
    cards.set(key, card);
    card.chart.refill(spec);
    settle(card.side, [
      chip(spec.lines) || (view.runs.length > 1 ? null : lastValue(spec.lines[0].series)),
      card.log]);
    return card.figure;
  }

  /* Those that the page has no place for any more. */
  function forget() {
    for (const [key, {figure, chart}] of cards) {
      if (figure.isConnected) continue;
      chart.end();
      cards.delete(key);
    }
  }

  /* ---- which metrics ------------------------------------------------------------------------- */

  /* {run, series} of every run that has the metric. */
  function linesOf(data, name, more) {
    return data.runs.flatMap((run, i) => run.series.filter(series => series.name === name)
      .map(series => ({run: i, series, ...more})));
  }

  /* Every name once, of the series that are wanted. */
  function namesOf(data, wanted) {
    return [...new Set(data.runs.flatMap(run => run.series.filter(wanted)
      .map(series => series.name)))].sort();
  }

  /* Of a run with one step all are constant, and are drawn. */
  function never(data, name) {
    return linesOf(data, name).every(({run, series}) =>
      constant(series) !== null && stepsOf(data.runs[run]) > 1);
  }

  /* [title, [[name, label]]] of the charts that come first; of those names alone. */
  function features(data, names) {
    const wanted = ({any, all, below}) => {
      if (below)
        return [...names].filter(name => name.startsWith(below)).sort()
          .map(name => [name, name.slice(below.length)]);
      return all ? all.filter(([name]) => names.has(name))
        : any.filter(name => names.has(name)).slice(0, 1).map(name => [name, '']);
    };
    const evaluations = namesOf(data, series => series.kind === 'evaluation')
      .filter(name => names.has(name)).slice(0, FEATURED_EVALUATIONS)
      .map(name => [`Evaluation: ${name.replace(/^eval\//, '')}`, [[name, '']]]);
    return [...FEATURED.map(feature => [feature.title, wanted(feature)]), ...evaluations]
      .filter(([, list]) => list.length);
  }

  function featured(data, view, list) {
    put('featured', list.map(([title, members]) => {
      const lines = members.flatMap(([name, label], i) =>
        linesOf(data, name, {label: members.length > 1 ? label : '', minor: i > 0}));
      return chartCard(view,
        {title, names: members.map(([name]) => name), lines, height: 210, rug: true});
    }));
  }

  /* Charts by the first word of their names, folded where there are many. */
  function groups(data, view, names) {
    const members = new Map();
    for (const name of names) {
      const prefix = name.includes('/') ? name.split('/')[0] : 'other';
      members.set(prefix, [...members.get(prefix) || [], name]);
    }
    return [...members].map(([prefix, list]) => {
      const fold = folds.get(prefix) || html('details', {open: names.length <= OPEN_METRICS},
        html('summary', {}, prefix, html('span', {class: 'note'})),
        html('div', {class: 'charts small'}));
      folds.set(prefix, fold);
      fold.querySelector('.note').textContent =
        ` ${plural(list.length, 'metric')}${prefix === 'time' ? ', seconds' : ''}`;
      settle(fold.querySelector('.charts'), list.map(name => chartCard(view,
        {title: name, names: [name], lines: linesOf(data, name, {label: ''}), height: 130})));
      return fold;
    });
  }

  /* Metrics that never change: a table with one value a run. */
  function constants(data, names) {
    if (!names.length) return null;
    const value = (name, run) => {
      const series = run.series.find(one => one.name === name);
      return series ? html('span', {class: 'num'}, format(constant(series), 9)) : '\u2013';
    };
    const lines = names.map(name => {
      const line = row(html('code', {}, name), ...data.runs.map(run => value(name, run)));
      line.dataset.name = name.toLowerCase();
      return line;
    });
    return html('details', {open: names.length <= OPEN_METRICS, id: 'constants'},
      html('summary', {}, 'constant', html('span', {class: 'note'},
        ` ${plural(names.length, 'metric has', 'metrics have')} one value`)),
      table('Metrics that never change', ['metric', ...data.runs.map((run, i) =>
        data.runs.length > 1 ? runName(data, i) : 'value')], lines));
  }

  function search(total) {
    const wanted = byId('metric-search').value.trim().toLowerCase();
    let found = 0;
    for (const fold of byId('groups').children) {
      let here = 0;
      for (const one of fold.querySelectorAll('[data-name]')) {
        one.hidden = !one.dataset.name.includes(wanted);
        here += one.hidden ? 0 : 1;
      }
      fold.hidden = here === 0;
      if (wanted) fold.open = true;
      found += here;
    }
    byId('metric-count').textContent =
      (wanted ? `${group(found)} of ` : '') + plural(total, 'metric');
  }

  /* ---- the bar above, the notes -------------------------------------------------------------- */

  /* Made once: it acts on the view, which stays when there are new values. */
  function bar(data, view) {
    if (byId('bar').hasChildNodes()) return;
    const legend = data.runs.map((run, i) => toggle(
      [html('i', {class: 'swatch'}), html('span', {}, run.label)],
      {class: 'run', '--run': color(i), title: 'show or hide this run'}, !view.hidden.has(i), () => {
        const hidden = flip(view.hidden, i);
        view.update({});
        return !hidden;
      }));
    const axes = [['steps', false], ['time', true]].map(([text, timed]) =>
      toggle(text, {class: 'small'}, view.timed === timed, () => {
        view.setAxis(timed);
        axes.forEach((button, i) => button.setAttribute('aria-pressed', String(timed === (i > 0))));
        return true;
      }));
    const named = smooth => smooth ? smooth.toFixed(2) : 'off';
    const value = html('output', {}, named(view.smooth));
    const slider = html('input', {type: 'range', min: 0, max: 0.99, step: 0.01,
      value: view.smooth});
    slider.addEventListener('input', () => {
      view.update({smooth: Number(slider.value)});
      value.textContent = named(view.smooth);
    });
    const reset = html('button', {type: 'button', class: 'reset', hidden: true,
      onclick: () => view.reset()});
    const axis = html('span', {class: 'axis', role: 'group', 'aria-label': 'Axis'}, 'Axis', axes);
    const tell = () => {
      axis.hidden = !view.runs.some(run => run.clock.length);
      reset.hidden = same(view.range, view.full);
      reset.textContent = `${view.range.map(at => view.name(at)).join(' to ')}: show all`;
    };
    view.listeners.push(tell);
    tell();
    put('bar', html('div', {class: 'legend'}, legend.length > 1 ? legend : null), reset, axis,
      html('label', {class: 'smooth'}, 'Smoothing', slider, value));
  }

  function notes(data, view) {
    const words = {error: 'error', warning: 'warning', resume: 'resumed', checkpoint: 'checkpoint',
      nan: 'NaN', up: 'infinite'};
    const kinds = new Set(view.runs.flatMap(run => run.marks.map(mark => mark.kind)));
    if (data.runs.some(run => run.series.some(series => series.odd))) kinds.add('nan').add('up');
    const few = data.runs.reduce((sum, run) => sum + run.series.filter(thinned).length, 0);
    byId('curves-note').textContent = 'Drag to zoom, double-click to reset.' +
      (data.runs.length > 1 ? ' A line in several colours: equal bits.' : '') +
      (few ? ` ${plural(few, 'series has', 'series have')} more points than a page can show: ` +
        'of each stretch of steps the least and the greatest value are here, so no extreme is lost.'
        : '');
    put('curves-key', Object.keys(words).filter(kind => kinds.has(kind)).map(kind =>
      html('span', {}, svg('svg', {viewBox: '-6 -6 12 12', 'aria-hidden': 'true'},
        svg('path', {class: `glyph ${kind}`, d: GLYPHS[kind]})), words[kind])));
  }

  /* All charts of the page. */
  function show(data, view) {
    const names = namesOf(data, () => true);
    const still = names.filter(name => never(data, name));
    const moving = names.filter(name => !still.includes(name));
    const first = features(data, new Set(moving));
    const drawn = new Set(first.flatMap(([, list]) => list.map(([name]) => name)));
    const rest = moving.filter(name => !drawn.has(name));
    const total = rest.length + still.length;
    bar(data, view);
    notes(data, view);
    featured(data, view, first);
    byId('metrics').hidden = total === 0;
    put('groups', groups(data, view, rest), constants(data, still));
    byId('metric-search').oninput = () => search(total);
    search(total);
    forget();
  }

  return {show};
})();
