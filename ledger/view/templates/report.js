/*
 * report.js - fills the page of `invar ledger report` from the JSON that stands in it.
 *
 * ledger/view/report/report.c describes the data. Text of the ledger enters the page by textContent
 * only.
 * When all is drawn the root element has data-ready; a failure stands there as data-failed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
'use strict';

(() => {
  const {html, svg, format, group, ticks, decode, double, firstDifference, GLYPHS} = InvarChart;
  const root = document.documentElement;
  const COLORS = 8; // that report.css has for runs

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
  const OPEN_RANKS = 32; // of a run: those that computed longest

  const STATES = {equal: 'equal', different: 'different', records: 'other metrics or samples',
    mixed: 'some differ', a: 'only in the first run', b: 'only in the other run'};
  const SCOPES = ['identity', 'build', 'host', 'gpu', 'free']; // first, in this order
  const TONES = {identical: 'good', nothing: 'warn', error: 'bad', warning: 'warn',
    different: 'bad', nondeterministic: 'bad'};

  /* ---- small things -------------------------------------------------------------------------- */

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
  const eventsOf = run => Object.values(run.levels).reduce((sum, count) => sum + count, 0);
  const thinned = series => series.at.length < series.count;
  const zero = series => series.at.length > 0 && /^0*$/.test(series.bits);

  function duration(ms) {
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

  function table(label, heads, rows) {
    const head = html('tr', {}, heads.map(text => html('th', {scope: 'col'}, text)));
    return scroller(label, html('table', {}, html('thead', {}, head), html('tbody', {}, rows)));
  }

  function row(...cells) {
    return html('tr', {}, cells.map(cell => html('td', {}, cell)));
  }

  /* Names and values; what has no value is left out. */
  function pairs(list, wide) {
    return html('dl', {class: wide ? 'wide' : null}, list.filter(([, value]) => value !== null && value !== '')
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

  /* ---- head ---------------------------------------------------------------------------------- */

  function stateOf(run) {
    const last = run.segments[run.segments.length - 1];
    if (!last || last.exit === null) return ['no end recorded', 'warn'];
    return last.exit === 0 ? ['finished', 'good'] : [`exit code ${last.exit}`, 'bad'];
  }

  function place(point) {
    const layer = point.layer === null ? null : `layer ${point.layer}`;
    return [point.phase, layer, point.op].filter(Boolean).join(', ');
  }

  /* [word, tone, sentence] */
  function verdict({runs, pairs: all}) {
    if (runs.length === 1) {
      const segments = plural(runs[0].segments.length, 'segment');
      return [...stateOf(runs[0]),
        `${runs[0].label}: ${plural(stepsOf(runs[0]), 'step')} in ${segments}`];
    }
    const apart = all.filter(pair => pair.first !== null);
    if (apart.length) {
      const pair = apart.reduce((a, b) => b.first < a.first ? b : a);
      const who = pair.self ? `${runs[pair.self === 'a' ? 0 : pair.b].label} disagrees with itself`
        : runs.length > 2 ? `${runs[pair.b].label} parts` : 'The runs part';
      const where = pair.point ? `, in ${place(pair.point)}` : '';
      return [pair.verdict, 'bad', `${who} at step ${group(pair.first)}${where}`];
    }
    if (all.some(pair => pair.verdict === 'nothing'))
      return ['nothing compared', 'warn', 'The runs have no step in common'];
    const least = Math.min(...all.map(pair => pair.compared.steps));
    return ['identical', 'good',
      `${plural(runs.length, 'run')}, the same bits in ${plural(least, 'common step')}`];
  }

  /* What somebody who has one minute should read about a run. */
  function findings(run) {
    const out = [];
    const say = (tone, text) => out.push(html('li', {class: tone}, text));
    const level = name => run.levels[name] || 0;
    const odd = run.series.filter(series => series.odd);
    for (const {step, point} of run.nan)
      say('bad', `NaN or infinity first at step ${group(step)} in ${point}`);
    if (odd.length) say('bad', `NaN or infinity in ${odd[0].name}` +
      (odd.length > 1 ? ` and ${plural(odd.length - 1, 'other metric')}` : ''));
    if (run.again.differ) say('bad', `${plural(run.again.differ, 'step')} executed twice with ` +
      `other bits, first ${group(run.again.first)}`);
    if (level('error')) say('bad', plural(level('error'), 'error'));
    for (const one of run.ranks.filter(rank => rank.verdict))
      say('warn', `Rank ${one.rank} on ${one.host} is a straggler: the others wait for it`);
    if (level('warning')) say('warn', plural(level('warning'), 'warning'));
    if (run.again.steps && !run.again.differ)
      say('good', `${plural(run.again.steps, 'step')} executed twice, same bits`);
    if (run.series.some(series => series.name === 'train/logp_diff_max' && zero(series)))
      say('good', 'Log-probs of rollout and training equal, every token');
    return html('ul', {class: 'findings'}, out);
  }

  function card(data, run, i) {
    const fact = (scope, key) => {
      const values = ((data.facts[scope] || {})[key] || [])[i];
      return values ? values[values.length - 1] : null;
    };
    const commit = fact('build', 'commit');
    const dirty = fact('build', 'dirty');
    const resumes = run.segments.slice(1).slice(-4).map(one => group(one.after));
    return html('article', {class: 'card', '--run': color(i)}, html('h3', {}, run.label),
      html('p', {class: 'tags'}, tag(run.kind), tag(...stateOf(run)),
        run.seals ? tag('sealed') : null),
      findings(run),
      pairs([
        ['uuid', hash(run.uuid)],
        ['steps', run.last < 0 ? 'none' : `${group(run.first)} to ${group(run.last)}`],
        ['segments', run.segments.length + (resumes.length
          ? `, resumed after step ${resumes.join(', ')}` : '')],
        ['content', hash(run.content, 'the hash of the bits')],
        ['chain', hash(run.chain, 'the chain at the last step')],
        ['integrity', hash(run.integrity, 'the chain over every row')],
        ['commit', commit && html('span', {class: 'commit'}, hash(commit),
          dirty && dirty !== 'clean' ? tag(dirty, 'warn') : null)],
        ['host', [fact('host', 'name'), fact('host', 'cpu')].filter(Boolean).join(', ')],
        ['GPU', fact('gpu', 'name')],
        ['began', when(run.created_ms)],
        ['parent', run.parent && html('span', {class: 'commit'}, hash(run.parent),
          run.fork_step === null ? null : `after step ${group(run.fork_step)}`)]],
      data.runs.length === 1));
  }

  function summary(data) {
    const [word, tone, sentence] = verdict(data);
    byId('pill').append(tag(word, `big ${tone}`));
    byId('verdict').textContent = sentence;
    document.title = `${sentence} \u00b7 Invar report`;
    byId('cards').append(...data.runs.map((run, i) => card(data, run, i)));
  }

  /* ---- where they part ----------------------------------------------------------------------- */

  function strip(pair, [first, last]) {
    const share = step => 100 * Math.max(step - first, 0) / (last - first + 1);
    const percent = step => `${share(step).toFixed(3)}%`;
    const text = ([from, to, state]) => `steps ${group(from)} to ${group(to)}: ${STATES[state]}`;
    const bars = pair.strip.map(part => svg('rect', {class: part[2], x: share(part[0]), y: 0,
      width: Math.max(share(part[1] + 1) - share(part[0]), 0.15), height: 22},
    svg('title', {}, text(part))));
    const label = pair.strip.slice(0, 12).map(text).join('; ');
    return html('div', {class: pair.first === null ? 'strip plain' : 'strip', role: 'img',
      'aria-label': label},
      pair.first === null ? null : html('div', {'--at': percent(pair.first),
        class: share(pair.first) > 80 ? 'flag left' : 'flag'},
      html('span', {}, `step ${group(pair.first)}`)),
      svg('svg', {viewBox: '0 0 100 22', preserveAspectRatio: 'none'}, bars),
      html('div', {class: 'scale'}, ticks(first, last, 6, true).at.map(step =>
        html('span', {'--at': percent(step)}, group(step)))));
  }

  function heatCell(pair, cell, phase, layer) {
    if (!cell) return html('td', {class: 'none'});
    const total = cell.equal + cell.different;
    const born = pair.point && pair.point.phase === phase && pair.point.layer === layer;
    const where = layer === null ? 'no layer' : `layer ${layer}`;
    const text = `${phase}, ${where}: ${cell.different} of ${plural(total, 'point')} differ`;
    return html('td', {class: `${cell.different ? 'differ' : 'equal'}${born ? ' born' : ''}`,
      title: text, 'aria-label': text,
      '--share': `${Math.round(30 + 70 * cell.different / total)}%`},
    cell.different || '\u00b7');
  }

  function heat(pair) {
    const phases = [...new Set(pair.heat.map(cell => cell.phase))];
    const layers = [...new Set(pair.heat.map(cell => cell.layer))]
      .sort((a, b) => (a === null ? -1 : a) - (b === null ? -1 : b));
    const cells = new Map(pair.heat.map(cell => [`${cell.phase}/${cell.layer}`, cell]));
    const heads = layers.map(layer =>
      html('th', {scope: 'col'}, layer === null ? '\u2013' : layer));
    const rows = phases.map(phase => html('tr', {}, html('th', {scope: 'row'}, phase),
      layers.map(layer => heatCell(pair, cells.get(`${phase}/${layer}`), phase, layer))));
    return scroller('Points that differ, by phase and layer', html('table', {class: 'heat'},
      html('thead', {}, html('tr', {}, html('th', {scope: 'col'}, 'phase \\ layer'), heads)),
      html('tbody', {}, rows)));
  }

  function origin(pair) {
    const {point, compared} = pair;
    const yes = value => value ? 'equal' : tag('different', 'bad');
    const of = (differ, equal, one) => equal + differ
      ? `${group(differ)} of ${plural(equal + differ, one)} differ` : null;
    return html('div', {class: 'origin'},
      pairs([
        ['step', group(pair.first)],
        ['weights before', pair.same_weights === null ? 'not known' : yes(pair.same_weights)],
        ['batch', yes(pair.same_batch)],
        ['random numbers', yes(pair.same_rng)]]),
      pairs([
        ['points', of(compared.points_different, compared.points_equal, 'point')],
        ['metrics', of(compared.metrics_different, compared.metrics_equal, 'metric')],
        ['samples', of(compared.samples_different, compared.samples_equal, 'sample')],
        ['structure', pair.changes ? plural(pair.changes, 'change') : 'equal']]),
      point ? pairs([
        ['first point', html('code', {}, point.name)],
        ['where', place(point)],
        ['its inputs', point.inputs === 0 ? 'not recorded'
          : point.born ? 'equal: the difference is born here' : 'differ, or are not recorded'],
        [pair.self ? 'at first' : 'first run', hash(point.a)],
        [pair.self ? 'repeated' : 'other run', hash(point.b)]]) : null);
  }

  /* Folded lists: names of points, and metrics with both values. */
  function details(pair) {
    const {points_different: points, metrics_different: metrics} = pair.compared;
    const more = (shown, all) => all > shown ? note(`and ${group(all - shown)} more`) : null;
    const value = bits => bits === null ? '\u2013'
      : html('span', {class: 'num', title: bits}, format(double(bits), 9));
    return [
      pair.points.length ? html('details', {},
        html('summary', {}, `${plural(points, 'point')} in order of execution`),
        html('ol', {class: 'names'}, pair.points.map(name =>
          html('li', {}, html('code', {}, name)))),
        more(pair.points.length, points)) : null,
      pair.metrics.length ? html('details', {},
        html('summary', {}, `${plural(metrics, 'metric')} with other bits`),
        table('Metrics that differ', ['metric', 'first', 'other', 'distance, ulp'],
          pair.metrics.map(one => row(html('code', {}, one.name), value(one.a), value(one.b),
            number(one.ulp === null ? '\u2013' : one.ulp)))),
        more(pair.metrics.length, metrics)) : null];
  }

  function pairBlock(data, pair, full) {
    const word = pair.verdict === 'nothing' ? 'nothing compared' : pair.verdict;
    const self = pair.self ? data.runs[pair.self === 'a' ? 0 : pair.b].label : null;
    return html('article', {class: 'pair'},
      html('h3', {}, runName(data, 0), html('span', {class: 'note'}, 'against'),
        runName(data, pair.b), tag(word, TONES[pair.verdict])),
      self ? note(`${self} executed step ${group(pair.first)} twice, with two results.`) : null,
      pair.twins ? note('Same identity and same program, other bits.') : null,
      strip(pair, full),
      pair.first === null ? null : [origin(pair),
        pair.heat.length ? [html('h4', {}, 'Points that differ at this step'), heat(pair)] : null,
        details(pair)]);
  }

  function parting(data, full) {
    byId('parting').hidden = data.pairs.length === 0;
    const states = Object.entries(STATES).filter(([state]) =>
      data.pairs.some(pair => pair.strip.some(part => part[2] === state)));
    const born = data.pairs.some(pair => pair.heat.length && pair.point);
    byId('pairs').append(...data.pairs.map(pair => pairBlock(data, pair, full)),
      html('p', {class: 'key'}, states.map(([state, text]) =>
        html('span', {}, html('i', {class: `box ${state}`}), text)),
      born ? html('span', {}, html('i', {class: 'box born'}), 'the first difference') : null));
  }

  /* ---- curves -------------------------------------------------------------------------------- */

  function marksOf(run) {
    const of = (kind, list, text) => list.map(step => ({step, kind, text: text(step)}));
    const alarms = run.events.filter(({step, level}) => step !== null && TONES[level])
      .map(({step, level, message}) => ({step, kind: level, text: `${level}: ${message}`}));
    return [
      ...of('checkpoint', run.checkpoints, step => `checkpoint of step ${group(step)}`),
      ...of('resume', run.segments.slice(1).map(one => one.after + 1),
        step => `resumed with step ${group(step)}`),
      ...alarms].sort((a, b) => a.step - b.step);
  }

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

  function chartCard(view, host, spec) {
    const figure = html('figure', {class: spec.rug ? 'chart' : 'chart small',
      'data-name': spec.names.join(' ').toLowerCase()});
    const log = toggle('log', {class: 'small', title: 'logarithmic axis'}, false, () => {
      chart.log = !chart.log;
      chart.stale();
      return chart.log;
    });
    figure.append(html('figcaption', {},
      html('span', {class: 'what'}, html('span', {class: 'name'}, spec.title),
        spec.rug ? html('code', {}, spec.names[0]) : null),
      html('span', {class: 'side'},
        chip(spec.lines) || (view.runs.length > 1 ? null : lastValue(spec.lines[0].series)), log)));
    host.append(figure);
    const chart = new InvarChart.Chart(view, figure, spec);
  }

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

  /* Returns the names that it has drawn. */
  function featured(data, view) {
    const names = new Set(namesOf(data, () => true));
    const used = new Set();
    const draw = (title, list) => {
      if (!list.length) return;
      list.forEach(([name]) => used.add(name));
      const lines = list.flatMap(([name, label], i) =>
        linesOf(data, name, {label: list.length > 1 ? label : '', minor: i > 0}));
      chartCard(view, byId('featured'),
        {title, names: list.map(([name]) => name), lines, height: 210, rug: true});
    };
    const wanted = ({any, all, below}) => {
      if (below)
        return [...names].filter(name => name.startsWith(below)).sort()
          .map(name => [name, name.slice(below.length)]);
      return all ? all.filter(([name]) => names.has(name))
        : any.filter(name => names.has(name)).slice(0, 1).map(name => [name, '']);
    };
    for (const feature of FEATURED) draw(feature.title, wanted(feature));
    for (const name of namesOf(data, series => series.kind === 'evaluation')
      .slice(0, FEATURED_EVALUATIONS))
      draw(`Evaluation: ${name.replace(/^eval\//, '')}`, [[name, '']]);
    return used;
  }

  function others(data, view, used) {
    const names = namesOf(data, series => !used.has(series.name));
    const groups = new Map();
    for (const name of names) {
      const prefix = name.includes('/') ? name.split('/')[0] : 'other';
      groups.set(prefix, [...groups.get(prefix) || [], name]);
    }
    byId('metrics').hidden = names.length === 0;
    for (const [prefix, members] of groups) {
      const grid = html('div', {class: 'charts small'});
      const about = ` ${plural(members.length, 'metric')}${prefix === 'time' ? ', seconds' : ''}`;
      byId('groups').append(html('details', {open: names.length <= OPEN_METRICS},
        html('summary', {}, prefix, html('span', {class: 'note'}, about)), grid));
      for (const name of members) chartCard(view, grid,
        {title: name, names: [name], lines: linesOf(data, name, {label: ''}), height: 130});
    }
    byId('metric-search').addEventListener('input', () => search(names.length));
    search(names.length);
  }

  function search(total) {
    const wanted = byId('metric-search').value.trim().toLowerCase();
    let found = 0;
    for (const fold of byId('groups').children) {
      let here = 0;
      for (const figure of fold.querySelectorAll('figure')) {
        figure.hidden = !figure.dataset.name.includes(wanted);
        here += figure.hidden ? 0 : 1;
      }
      fold.hidden = here === 0;
      if (wanted) fold.open = true;
      found += here;
    }
    byId('metric-count').textContent =
      (wanted ? `${group(found)} of ` : '') + plural(total, 'metric');
  }

  function bar(data, view) {
    const legend = data.runs.map((run, i) => toggle(
      [html('i', {class: 'swatch'}), html('span', {}, run.label)],
      {class: 'run', '--run': color(i), title: 'show or hide this run'}, true, () => {
        const hidden = flip(view.hidden, i);
        view.update({});
        return !hidden;
      }));
    const value = html('output', {}, 'off');
    const slider = html('input', {type: 'range', min: 0, max: 0.99, step: 0.01, value: 0});
    slider.addEventListener('input', () => {
      const smooth = Number(slider.value);
      value.textContent = smooth ? smooth.toFixed(2) : 'off';
      view.update({smooth});
    });
    const reset = html('button', {type: 'button', hidden: true, onclick: () => view.reset()});
    view.listeners.push(() => {
      reset.hidden = same(view.range, view.full);
      reset.textContent = `Steps ${view.range.map(group).join(' to ')}: show all`;
    });
    byId('bar').append(html('div', {class: 'legend'}, legend.length > 1 ? legend : null), reset,
      html('label', {class: 'smooth'}, 'Smoothing', slider, value));
  }

  function curvesNote(data, view) {
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
    byId('curves-key').append(...Object.keys(words).filter(kind => kinds.has(kind)).map(kind =>
      html('span', {}, svg('svg', {viewBox: '-6 -6 12 12', 'aria-hidden': 'true'},
        svg('path', {class: `glyph ${kind}`, d: GLYPHS[kind]})), words[kind])));
  }

  /* ---- tables -------------------------------------------------------------------------------- */

  function facts(data) {
    const rank = scope => (SCOPES.indexOf(scope) + SCOPES.length + 1) % (SCOPES.length + 1);
    const all = Object.keys(data.facts).sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1))
      .flatMap(scope => Object.keys(data.facts[scope]).sort()
        .map(key => ({scope, key, values: data.facts[scope][key]})));
    const name = one => html('span', {class: 'fact'}, html('small', {}, one.scope), one.key);
    const value = (list, first) =>
      html('span', {class: same(list, first) ? 'value' : 'value other'},
        list ? list.join(' \u2192 ') : '\u2013');
    const differs = one => one.values.some(list => !same(list, one.values[0]));
    const apart = all.filter(differs);
    const alike = all.filter(one => !differs(one));
    const many = data.runs.length > 1;
    if (many) byId('facts-body').append(apart.length
      ? table('Facts that differ', ['', ...data.runs.map((run, i) => runName(data, i))],
        apart.map(one => row(name(one), ...one.values.map(list => value(list, one.values[0])))))
      : note('No recorded fact differs.'));
    if (alike.length) byId('facts-body').append(html('details', {open: !many},
      html('summary', {}, plural(alike.length, many ? 'fact is equal' : 'fact',
        many ? 'facts are equal' : 'facts')),
      table('Facts', ['', many ? 'all runs' : data.runs[0].label],
        alike.map(one => row(name(one), value(one.values[0], one.values[0]))))));
  }

  function slow(data) {
    const rows = data.runs.flatMap((run, i) => run.slow.map(one => ({...one, run: i})))
      .sort((a, b) => b.times_median - a.times_median);
    byId('slow-body').append(rows.length
      ? table('Slow steps', ['step', 'run', 'phase', 'took', 'its median', 'ratio'],
        rows.map(one => row(number(group(one.step)), runName(data, one.run), one.phase,
          number(duration(one.ms)), number(duration(one.median_ms)), html('span', {class: 'meter',
            '--share': `${100 * one.times_median / rows[0].times_median}%`},
          number(`\u00d7 ${one.times_median.toFixed(1)}`)))))
      : note('No phase took more than 1.5 times its median.'));
  }

  /* A bar as wide as its cell; parts are [class, from, to] of 100. */
  function gauge(text, parts) {
    return html('div', {class: 'gauge', role: 'img', 'aria-label': text, title: text},
      svg('svg', {viewBox: '0 0 100 10', preserveAspectRatio: 'none'}, parts.map(([kind, from, to]) =>
        svg('rect', {class: kind, x: from, y: 0, width: Math.max(to - from, 0.3), height: 10}))));
  }

  function rankRow(run, one, longest) {
    const share = seconds => 100 * seconds / longest;
    const at = step => 100 * (step - run.first) / stepsOf(run);
    const [computing, waiting] = [one.computing_s, one.waiting_s].map(s => duration(1e3 * s));
    const turns = run.slowest.filter(stretch => stretch.rank === one.rank)
      .map(({from, to}) => ['turn', at(from), at(to + 1)]);
    return row(number(one.rank), one.host,
      gauge(`computing ${computing}, waiting ${waiting}`, [['compute', 0, share(one.computing_s)],
        ['wait', share(one.computing_s), share(one.computing_s + one.waiting_s)]]),
      number(computing), number(waiting),
      gauge(`computed longest in ${plural(one.slowest_in, 'step')}`, turns),
      number(group(one.slowest_in)), number(`${format(one.sent_mb, 4)} MB`),
      number(`${format(one.received_mb, 4)} MB`),
      one.verdict ? tag(one.verdict, 'warn') : '');
  }

  function rankTable(data, run, i) {
    const longest = Math.max(...run.ranks.map(one => one.computing_s + one.waiting_s), 1e-9);
    const more = run.ranks.length - OPEN_RANKS;
    return [data.runs.length > 1 ? html('h3', {}, runName(data, i)) : null,
      table(`Ranks of ${run.label}`, ['rank', 'host', 'time', 'computing', 'waiting',
        'where in the run it computed longest', 'steps', 'sent', 'received', ''],
      run.ranks.slice(0, OPEN_RANKS).map(one => rankRow(run, one, longest))),
      more > 0 ? note(`and ${plural(more, 'rank')} that computed less`) : null];
  }

  /* One rank has nobody to wait for. */
  function ranks(data) {
    const tables = data.runs.map((run, i) => run.ranks.length ? rankTable(data, run, i) : null);
    byId('ranks').hidden = !tables.some(Boolean);
    byId('ranks-body').append(...tables.flat().filter(Boolean), html('p', {class: 'key'},
      [['compute', 'computing'], ['wait', 'waiting'], ['turn', 'computed longest']]
        .map(([kind, text]) => html('span', {}, html('i', {class: `box ${kind}`}), text))));
  }

  function events(data) {
    const all = data.runs.flatMap((run, i) => run.events.map(event => ({...event, run: i})))
      .sort((a, b) => a.ms - b.ms || a.run - b.run);
    const missing = data.runs.reduce((sum, run) => sum + eventsOf(run) - run.events.length, 0);
    const levels = ['error', 'warning', 'info', 'debug']
      .filter(level => all.some(event => event.level === level));
    const shown = new Set(levels.filter(level => level !== 'debug'));
    const draw = () => {
      const rows = all.filter(event => shown.has(event.level)).map(event => row(
        number(event.step === null ? '\u2013' : group(event.step)), number(when(event.ms)),
        runName(data, event.run), tag(event.level, TONES[event.level]), event.kind,
        html('span', {}, event.message,
          event.data ? html('code', {class: 'data'}, event.data) : null)));
      byId('events-body').replaceChildren(rows.length
        ? table('Events', ['step', 'time', 'run', 'level', 'kind', 'message'], rows)
        : note('None.'));
      if (missing) byId('events-body').append(
        note(`${plural(missing, 'event')} of lesser weight left out; the ledger has all.`));
    };
    byId('events-tools').append(...levels.map(level => toggle(
      `${level} ${group(all.filter(event => event.level === level).length)}`, {class: 'small'},
      shown.has(level), () => {
        const on = flip(shown, level);
        draw();
        return on;
      })));
    draw();
  }

  function compared(data) {
    const body = byId('compared-body');
    if (data.pairs.length) body.append(table('What was compared',
      ['with the first run', 'verdict', 'steps compared', 'only in the first', 'only in this one',
        'facts equal', 'facts different'],
      data.pairs.map(({b, verdict: word, compared: sum}) => row(runName(data, b),
        tag(word, TONES[word]), number(group(sum.steps)), number(group(sum.only_a)),
        number(group(sum.only_b)), number(group(sum.facts_equal)),
        number(group(sum.facts_different))))));
    body.append(table('What is in this report',
      ['run', 'steps', 'series', 'values', 'values here', 'not finite', 'events', 'checkpoints'],
      data.runs.map((run, i) => {
        const sum = take => group(run.series.reduce((total, series) => total + take(series), 0));
        return row(runName(data, i), ...[group(stepsOf(run)), group(run.series.length),
          sum(series => series.count), sum(series => series.at.length), sum(series => series.odd),
          group(eventsOf(run)), group(run.checkpoints.length)].map(number));
      })));
    byId('compared').querySelector('h2').textContent =
      data.pairs.length ? 'What was compared' : 'What is in this report';
  }

  /* ---- all of it ----------------------------------------------------------------------------- */

  /* Runs of one name get a piece of their uuid. */
  function distinguish(runs) {
    for (const run of runs)
      run.twin = runs.some(other => other !== run && other.label === run.label);
    for (const run of runs) if (run.twin) run.label += ` \u00b7 ${run.uuid.slice(0, 8)}`;
  }

  function nav() {
    for (const section of document.querySelectorAll('main section[id]')) {
      const title = section.querySelector('h2');
      if (title && !section.hidden)
        byId('nav').append(html('a', {href: `#${section.id}`}, title.textContent));
    }
  }

  /* [first, last] step of all runs; an evaluation may stand before the first, at -1. */
  function extent(runs) {
    const ran = runs.filter(run => run.last >= 0);
    const starts = ran.flatMap(run => run.series.map(series => series.at[0]));
    return [Math.min(...ran.map(run => run.first), ...starts, ran.length ? Infinity : 0),
      Math.max(1, ...ran.map(run => run.last))];
  }

  function build() {
    const data = JSON.parse(byId('data').textContent);
    distinguish(data.runs);
    const full = extent(data.runs);
    const view = new InvarChart.View(data.runs.map((run, i) =>
      ({label: run.label, color: color(i), marks: marksOf(run)})), full);
    summary(data);
    parting(data, full);
    bar(data, view);
    curvesNote(data, view);
    others(data, view, featured(data, view));
    facts(data);
    slow(data);
    ranks(data);
    events(data);
    compared(data);
    nav();
    addEventListener('beforeprint', () => view.charts.forEach(chart => chart.draw()));
    // two frames later the charts in sight are drawn
    requestAnimationFrame(() => requestAnimationFrame(() => root.setAttribute('data-ready', '')));
  }

  addEventListener('error', event => root.setAttribute('data-failed', event.message));
  build();
})();
