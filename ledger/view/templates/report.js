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
  const {html, svg, format, group, ticks, duration, when, byId, put, plural, color, tag, note,
    number, hash, same, stepsOf, scroller, table, row, pairs, runName, toggle, flip} = InvarPage;
  const {double} = InvarSeries;
  const {TONES, place} = InvarSummary;
  const root = document.documentElement;

  const OPEN_RANKS = 32; // of a run: those that computed longest
  const STATES = {equal: 'equal', different: 'different', records: 'other metrics or samples',
    mixed: 'some differ', a: 'only in the first run', b: 'only in the other run'};
  const SCOPES = ['identity', 'free', 'build', 'host', 'gpu']; // first, in this order
  const KEYS = ['identity', 'free']; // scopes of a recipe's keys
  const eventsOf = run => Object.values(run.levels).reduce((sum, count) => sum + count, 0);

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
    const answer = value => value === null ? 'not recorded' : value ? 'equal' : tag('different', 'bad');
    const of = (differ, equal, one) => equal + differ
      ? `${group(differ)} of ${plural(equal + differ, one)} differ` : null;
    return html('div', {class: 'origin'},
      pairs([
        ['step', group(pair.first)],
        ['weights before', answer(pair.same_weights)],
        ['batch', answer(pair.same_batch)],
        ['random numbers', answer(pair.same_rng)]]),
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

  /* The keys that say that these are two experiments; before any hash that follows from them. */
  function experiments(data, pair) {
    const keys = data.facts.identity || {};
    const apart = Object.keys(keys).sort().filter(key => !same(keys[key][0], keys[key][pair.b]));
    if (!apart.length) return null;
    const value = list => html('span', {class: 'value'}, list ? list.join(' \u2192 ') : '\u2013');
    return [html('h4', {}, `Not the same experiment: ${plural(apart.length, 'key differs',
      'keys differ')}`), table('Keys of the identity that differ',
      ['key', runName(data, 0), runName(data, pair.b)], apart.map(key =>
        row(html('code', {}, key), value(keys[key][0]), value(keys[key][pair.b]))))];
  }

  function pairBlock(data, pair, full) {
    const word = pair.verdict === 'nothing' ? 'nothing compared' : pair.verdict;
    const self = pair.self ? data.runs[pair.self === 'a' ? 0 : pair.b].label : null;
    return html('article', {class: 'pair'},
      html('h3', {}, runName(data, 0), html('span', {class: 'note'}, 'against'),
        runName(data, pair.b), tag(word, TONES[pair.verdict])),
      self ? note(`${self} executed step ${group(pair.first)} twice, with two results.`) : null,
      pair.twins ? note('Same identity and same program, other bits.') : null,
      experiments(data, pair),
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
    put('pairs', data.pairs.map(pair => pairBlock(data, pair, full)),
      html('p', {class: 'key'}, states.map(([state, text]) =>
        html('span', {}, html('i', {class: `box ${state}`}), text)),
      born ? html('span', {}, html('i', {class: 'box born'}), 'the first difference') : null));
  }

  /* ---- curves -------------------------------------------------------------------------------- */

  function marksOf(run) {
    const of = (kind, list, text) => list.map(step => ({step, kind, text: text(step)}));
    const alarms = run.events.filter(({step, level}) => step !== null && TONES[level])
      .map(({step, level, message}) =>
        ({step, kind: level, text: message ? `${level}: ${message}` : level}));
    return [
      ...of('checkpoint', run.checkpoints, step => `checkpoint of step ${group(step)}`),
      ...of('resume', run.segments.slice(1).map(one => one.after + 1),
        step => `resumed with step ${group(step)}`),
      ...alarms].sort((a, b) => a.step - b.step);
  }

  /* The clock only ever goes on: a step that an earlier process did last is not before its turn. */
  function clockOf(run) {
    let last = 0;
    return run.clock.length ? [[run.first - 1, 0], ...run.clock.map(([step, ms]) =>
      [step, last = Math.max(last, ms)])] : [];
  }

  /* ---- tables -------------------------------------------------------------------------------- */

  /* Every fact: {scope, key, values: [[value] | null]}, one list a run. */
  function factsOf(data) {
    const rank = scope => (SCOPES.indexOf(scope) + SCOPES.length + 1) % (SCOPES.length + 1);
    return Object.keys(data.facts).sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1))
      .flatMap(scope => Object.keys(data.facts[scope]).sort()
        .map(key => ({scope, key, values: data.facts[scope][key]})));
  }

  /* Runs of Invar have this hash; nobody knows the defaults of other trainers. */
  const isOurs = (data, i) => Boolean(((data.facts.identity || {})['model hash'] || [])[i]);

  /* A key that somebody set; hashes only follow from what was set. */
  function isSet(data, {scope, key, values}) {
    if (!KEYS.includes(scope) || / hash$/.test(key)) return false;
    const usual = data.defaults[key];
    return values.some((list, i) => list &&
      (!isOurs(data, i) || list.some(value => value !== usual)));
  }

  function factTable(data, label, list, wide) {
    const name = one => html('span', {class: 'fact'}, html('small', {}, one.scope), one.key);
    const value = (values, first) =>
      html('span', {class: same(values, first) ? 'value' : 'value other'},
        values ? values.join(' \u2192 ') : '\u2013');
    const heads = wide ? data.runs.map((run, i) => runName(data, i))
      : [data.runs.length > 1 ? 'all runs' : data.runs[0].label];
    return table(label, ['', ...heads], list.map(one => row(name(one),
      ...(wide ? one.values : one.values.slice(0, 1)).map(list_ => value(list_, one.values[0])))));
  }

  function facts(data) {
    const all = factsOf(data);
    const differs = one => one.values.some(list => !same(list, one.values[0]));
    const apart = all.filter(differs);
    const alike = all.filter(one => !differs(one));
    const chosen = alike.filter(one => isSet(data, one));
    const usual = alike.filter(one => KEYS.includes(one.scope) && !chosen.includes(one));
    const other = alike.filter(one => !KEYS.includes(one.scope));
    const many = data.runs.length > 1;
    const same_ = many ? ', the same in all runs' : '';
    const known = Object.keys(data.defaults).length > 0 && data.runs.every((_, i) => isOurs(data, i));
    const fold = (open, title, label, list) => list.length ? html('details', {open},
      html('summary', {}, title), factTable(data, label, list, false)) : null;
    put('facts-body',
      many ? apart.length ? factTable(data, 'Facts that differ', apart, true)
        : note('No recorded fact differs.') : null,
      fold(true, plural(chosen.length, 'key') +
        (known ? ' with another value than the default' : '') + same_, 'Keys that are set', chosen),
      fold(false, (known ? `${plural(usual.length, 'key')} at the default, and hashes`
        : plural(usual.length, 'hash', 'hashes')) + same_, 'Keys at their default', usual),
      fold(false, `${plural(other.length, 'fact')} about build, host and ops${same_}`, 'Other facts',
        other));
  }

  function slow(data) {
    const rows = data.runs.flatMap((run, i) => run.slow.map(one => ({...one, run: i})))
      .sort((a, b) => b.times_median - a.times_median);
    put('slow-body', rows.length
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
    put('ranks-body', tables, html('p', {class: 'key'},
      [['compute', 'computing'], ['wait', 'waiting'], ['turn', 'computed longest']]
        .map(([kind, text]) => html('span', {}, html('i', {class: `box ${kind}`}), text))));
  }

  const unwanted = new Set(['debug']); // levels of events
  const levels = new Map(); // their buttons
  let drawEvents = null; // of the newest data

  function levelButton(level, count) {
    const button = levels.get(level) || toggle('', {class: 'small'}, !unwanted.has(level), () => {
      const off = flip(unwanted, level);
      drawEvents();
      return !off;
    });
    button.textContent = `${level} ${group(count)}`;
    levels.set(level, button);
    return button;
  }

  function events(data) {
    const all = data.runs.flatMap((run, i) => run.events.map(event => ({...event, run: i})))
      .sort((a, b) => a.ms - b.ms || a.run - b.run);
    const missing = data.runs.reduce((sum, run) => sum + eventsOf(run) - run.events.length, 0);
    const counts = ['error', 'warning', 'info', 'debug']
      .map(level => [level, all.filter(event => event.level === level).length]);
    drawEvents = () => {
      const rows = all.filter(event => !unwanted.has(event.level)).map(event => row(
        number(event.step === null ? '\u2013' : group(event.step)), number(when(event.ms)),
        runName(data, event.run), tag(event.level, TONES[event.level]), event.kind,
        html('span', {}, event.message,
          event.data ? html('code', {class: 'data'}, event.data) : null)));
      put('events-body', rows.length
        ? table('Events', ['step', 'time', 'run', 'level', 'kind', 'message'], rows)
        : note('None.'),
      missing ? note(`${plural(missing, 'event')} of lesser weight left out; the ledger has all.`)
        : null);
    };
    put('events-tools', counts.filter(([, count]) => count)
      .map(([level, count]) => levelButton(level, count)));
    drawEvents();
  }

  const WITHOUT = {
    samples: 'Samples were left out (--no-samples).',
    share: 'Left out (--share): samples, values with blanks, which may be commands, folders of ' +
      'paths, the name of the host, the author, and messages of events.',
  };

  function compared(data) {
    put('compared-body', data.without ? note(WITHOUT[data.without]) : null, data.pairs.length ? table('What was compared',
      ['with the first run', 'verdict', 'steps compared', 'only in the first', 'only in this one',
        'facts equal', 'facts different'],
      data.pairs.map(({b, verdict: word, compared: sum}) => row(runName(data, b),
        tag(word, TONES[word]), number(group(sum.steps)), number(group(sum.only_a)),
        number(group(sum.only_b)), number(group(sum.facts_equal)),
        number(group(sum.facts_different))))) : null,
    table('What is in this report',
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
    put('nav', [...document.querySelectorAll('main section[id]')].map(section => {
      const title = section.querySelector('h2');
      return title && !section.hidden
        ? html('a', {href: `#${section.id}`}, title.textContent) : null;
    }));
  }

  /* [first, last] step of all runs; an evaluation may stand before the first, at -1. */
  function extent(runs) {
    const ran = runs.filter(run => run.last >= 0);
    const starts = ran.flatMap(run => run.series.map(series => series.at[0]));
    return [Math.min(...ran.map(run => run.first), ...starts, ran.length ? Infinity : 0),
      Math.max(1, ...ran.map(run => run.last))];
  }

  let view = null; // of all charts; it stays when there is more of the runs

  function build(data) {
    distinguish(data.runs);
    const full = extent(data.runs);
    const runs = data.runs.map((run, i) =>
      ({label: run.label, color: color(i), clock: clockOf(run), marks: marksOf(run)}));
    if (view) view.refill(runs, full);
    else view = new InvarChart.View(runs, full);
    InvarSummary.show(data);
    parting(data, full);
    InvarCurves.show(data, view);
    InvarSamples.show(data);
    facts(data);
    slow(data);
    ranks(data);
    events(data);
    compared(data);
    nav();
  }

  /* ---- live ---------------------------------------------------------------------------------- */

  const PERIOD = 2000; // milliseconds from one question to the next
  const REST = 5000; // while nobody writes the ledger: the run may be resumed

  /*
   * Fills the page again, as it was looked at: what is unfolded, and how far all is scrolled. Parts
   * with controls see to that themselves; tables are made anew, and found again by their names.
   */
  function rebuild(data) {
    const all = selector => [...document.querySelectorAll(`main ${selector}`)];
    const title = fold =>
      fold.querySelector('summary').firstChild.textContent.replace(/^[\d\s]+/, '');
    const label = box => box.getAttribute('aria-label');
    const open = new Map(all('details').map(fold => [title(fold), fold.open]));
    const boxes = new Map(all('.scroll').map(box =>
      [label(box), [box.scrollLeft, box === document.activeElement]]));
    const top = scrollY;
    build(data);
    for (const fold of all('details')) if (open.has(title(fold))) fold.open = open.get(title(fold));
    for (const box of all('.scroll')) {
      const [left, focused] = boxes.get(label(box)) || [0, false];
      box.scrollLeft = left;
      if (focused) box.focus({preventScroll: true});
    }
    scrollTo({top, behavior: 'instant'});
  }

  function say(text, tone) {
    byId('live').textContent = text;
    byId('live').className = `tag ${tone}`;
  }

  /* Asks for the data if the ledger has new entries, or has gained or lost its writer. */
  async function follow(known) {
    let entries = known;
    let over = false;
    try {
      const state = await (await fetch('state', {cache: 'no-store'})).json();
      over = state.over;
      if (`${state.entries} ${over}` !== entries) {
        rebuild(await (await fetch('data', {cache: 'no-store'})).json());
        entries = `${state.entries} ${over}`;
      }
      say(over ? 'over' : 'live', over ? '' : 'good');
    } catch (error) {
      say('no answer', 'warn');
    }
    setTimeout(() => follow(entries), over ? REST : PERIOD);
  }

  addEventListener('error', event => root.setAttribute('data-failed', event.message));
  addEventListener('beforeprint', () => view.charts.forEach(chart => chart.draw()));
  build(JSON.parse(byId('data').textContent));
  if ('live' in root.dataset) follow(null);
  // two frames later the charts in sight are drawn
  requestAnimationFrame(() => requestAnimationFrame(() => root.setAttribute('data-ready', '')));
})();
