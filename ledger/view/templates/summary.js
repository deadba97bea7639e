/*
 * summary.js - the head of a report: the verdict, and of each run what somebody reads in a minute.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
'use strict';

const InvarSummary = (() => {
  const {html, format, group, duration, when, byId, put, plural, color, tag, number, hash, stepsOf,
    table, row, pairs, runName} = InvarPage;
  const {decode, zero} = InvarSeries;

  /* What tells how well a run does, where it has one of these. */
  const GOALS = [['Reward', 'rollout/raw_reward'], ['Reward', 'rollout/rewards'],
    ['Loss', 'train/loss'], ['Loss', 'loss']];
  const OTHER_SETS = 3; // of evaluations, beside the first
  const SENTENCES = 3; // of events of a level
  const MANY = 4; // so many runs are a table first
  const TONES = {identical: 'good', nothing: 'warn', error: 'bad', warning: 'warn',
    different: 'bad', nondeterministic: 'bad'};

  /* The newest value of a fact of the i-th run; null: it has none. */
  function factOf(data, i, scope, key) {
    const values = ((data.facts[scope] || {})[key] || [])[i];
    return values ? values[values.length - 1] : null;
  }

  /* How long its processes lived, in milliseconds; the pauses between them do not count. */
  function lived(run) {
    return run.segments.reduce((sum, one) => sum + Math.max(0, one.end - one.ms), 0);
  }

  function stateOf(run) {
    const last = run.segments[run.segments.length - 1];
    if (run.running) return ['running', ''];
    if (!last || last.exit === null) return ['no end recorded', 'warn'];
    if (last.stopped) return ['stopped', 'warn'];
    return last.exit === 0 ? ['finished', 'good'] : [`exit code ${last.exit}`, 'bad'];
  }

  function place(point) {
    const layer = point.layer === null ? null : `layer ${point.layer}`;
    return [point.phase, layer, point.op].filter(Boolean).join(', ');
  }

  /* Up to the number of the step, which is the pair's. */
  function whoParts(runs, all, apart, pair) {
    if (pair.self)
      return `${runs[pair.self === 'a' ? 0 : pair.b].label} disagrees with itself at step`;
    if (runs.length === 2) return 'The runs part at step';
    return `${group(apart.length)} of ${plural(all.length, 'run')} ` +
      `${apart.length === 1 ? 'parts' : 'part'} from ${runs[0].label}, ` +
      `${apart.length === 1 ? '' : 'first '}at step`;
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
      const where = pair.point ? `, in ${place(pair.point)}` : '';
      const who = whoParts(runs, all, apart, pair);
      return [pair.verdict, 'bad', `${who} ${group(pair.first)}${where}`];
    }
    if (all.some(pair => pair.verdict === 'nothing'))
      return ['nothing compared', 'warn', 'The runs have no step in common'];
    const least = Math.min(...all.map(pair => pair.compared.steps));
    return ['identical', 'good',
      `${plural(runs.length, 'run')}, the same bits in ${plural(least, 'common step')}`];
  }

  /* The first events of a level, each once, and how many others there are. */
  function sentences(run, level) {
    const cut = text => text.length > 240 ? `${text.slice(0, 239)}\u2026` : text;
    const texts = new Set(run.events.filter(event => event.level === level && event.message)
      .sort((a, b) => a.ms - b.ms)
      .map(({step, kind, message}) => (kind === 'triage' ? 'Suspicion: ' : '') +
        (step === null ? '' : `Step ${group(step)}: `) + cut(message)));
    const first = [...texts].slice(0, SENTENCES);
    return {first, more: (run.levels[level] || 0) - first.length};
  }

  /* What somebody who has one minute should read about a run. */
  function findings(run) {
    const out = [];
    const say = (tone, text) => out.push(html('li', {class: tone}, text));
    const tell = (level, tone) => {
      const {first, more} = sentences(run, level);
      for (const text of first) say(tone, text);
      if (more) say(tone, first.length ? `and ${plural(more, `more ${level}`, `more ${level}s`)}`
        : plural(more, level));
    };
    const odd = run.series.filter(series => series.odd);
    for (const {step, point} of run.nan)
      say('bad', `NaN or infinity first at step ${group(step)} in ${point}`);
    if (odd.length) say('bad', `NaN or infinity in ${odd[0].name}` +
      (odd.length > 1 ? ` and ${plural(odd.length - 1, 'other metric')}` : ''));
    if (run.again.differ) say('bad', `${plural(run.again.differ, 'step')} executed twice with ` +
      `other bits, first ${group(run.again.first)}`);
    tell('error', 'bad');
    if (run.damaged.length) say('bad', `${plural(run.damaged.length, 'kept sample')} damaged and ` +
      `left out: ${run.damaged.slice(0, 3).map(({step, idx, why}) =>
        `sample ${group(idx)} of step ${group(step)} ${why}`).join('; ')}` +
      (run.damaged.length > 3 ? '; ...' : ''));
    for (const one of run.ranks.filter(rank => rank.verdict))
      say('warn', `Rank ${one.rank}${one.host ? ` on ${one.host}` : ''} is a straggler: the ` +
        'others wait for it');
    if (run.again.other) say('warn', `${plural(run.again.other, 'step')} executed twice with the ` +
      `same bits, but other metrics, samples or replies, first ${group(run.again.first_other)}`);
    tell('warning', 'warn');
    if (run.again.steps && !run.again.differ && !run.again.other)
      say('good', `${plural(run.again.steps, 'step')} executed twice, same bits`);
    const gap = run.series.find(one => one.name === 'train/logp_diff_max' && one.kind === 'metric');
    if (gap && zero(gap)) say('good', 'Log-probs of rollout and training equal, every token' +
      (gap.count === stepsOf(run) ? ''
        : ` of ${group(gap.count)} of ${plural(stepsOf(run), 'step')}; the others not compared`));
    return html('ul', {class: 'findings'}, out);
  }

  /* The first and the last of these values. */
  function span(y) {
    return y.length === 1 ? format(y[0], 3)
      : `${format(y[0], 3)} \u2192 ${format(y[y.length - 1], 3)}`;
  }

  /* First and last value of what tells how well it does: [title, text, about]. */
  function goal(run) {
    for (const [title, name] of GOALS) {
      const series = run.series.find(one => one.name === name);
      if (!series || !series.at.length) continue;
      const {x, y} = decode(series);
      return [title, span(y), `${name}, step ${group(x[0])} to ${group(x[x.length - 1])}`];
    }
    return null;
  }

  /* -1: the lower the better, 1: the higher; 0: its name does not say. */
  function direction(name) {
    if (/(loss|perplexity|ppl)$/.test(name)) return -1;
    return /(reward|accuracy|score)$/.test(name) ? 1 : 0;
  }

  /* "SET/what" and "SET-what" are details of "SET". */
  function isDetail(name, of) {
    return name !== of && name.startsWith(of) && /[-/]/.test(name[of.length]);
  }

  /* Of each set of evaluations the series that tells most: [{name, way, series}]. */
  function evaluations(run) {
    const found = run.series.filter(one => one.kind === 'evaluation' && one.at.length)
      .map(series => ({name: series.name.replace(/^eval\//, ''), series}));
    // of our own evaluations what has the name of its set is the mean reward
    const isSet = name => !/[-/]/.test(name) || found.some(one => isDetail(one.name, name));
    const all = found.map(one => ({...one, way: direction(one.name) || Number(isSet(one.name))}));
    const detail = one => all.some(({name}) => isDetail(one.name, name));
    const sets = new Map();
    for (const one of all.filter(each => !detail(each)).sort((a, b) => b.way ** 2 - a.way ** 2)) {
      const set = one.name.split('/')[0];
      if (!sets.has(set)) sets.set(set, one);
    }
    return [...sets.values()].sort((a, b) => a.name < b.name ? -1 : 1);
  }

  /* The best value of an evaluation and when it was, or where nobody knows what is better all. */
  function told({name, way, series}) {
    const {x, y} = decode(series);
    const when_ = i => x[i] < 0 ? 'before training' : `at step ${group(x[i])}`;
    if (!way) return {title: 'Evaluation', name, text: span(y), about: `${name}, ${when_(0)} ` +
      `and ${when_(y.length - 1)}`};
    const top = y.reduce((best, value, i) =>
      way * value > way * y[best] || Number.isNaN(y[best]) ? i : best, 0);
    return {title: 'Best evaluation', name, text: format(y[top], 3), about: `${name} ${when_(top)}`};
  }

  function best(run) {
    const [first, ...others] = evaluations(run).map(told);
    return first ? [first.title, first.text, [first.about,
      ...others.slice(0, OTHER_SETS).map(one => `${one.text}: ${one.about}`),
      ...others.length > OTHER_SETS ? [`and ${plural(others.length - OTHER_SETS, 'set')}`] : []]
      .join('; ')] : null;
  }

  /* The model that was loaded: the name of its folder, its family, its size. */
  function modelOf({model}, fact) {
    const folder = fact('free', 'hf-checkpoint') || fact('free', 'load');
    const family = model.family || 'family not recorded';
    const name = folder ? folder.replace(/\/+$/, '').split('/').pop() : model.family;
    return name ? ['Model', name, [folder && family, model.layers && plural(model.layers, 'layer'),
      model.hidden_size && `${group(model.hidden_size)} wide`,
      model.parameters && plural(model.parameters, 'parameter')].filter(Boolean).join(', ')] : null;
  }

  /* What people ask first: large words with a line below each. */
  function tiles(data, run, i) {
    const fact = (scope, key) => factOf(data, i, scope, key);
    const ms = lived(run);
    const device = fact('free', 'device');
    const list = [goal(run), best(run),
      run.segments.length ? ['Duration', duration(ms),
        `${plural(stepsOf(run), 'step')}, ${plural(run.segments.length, 'segment')}`] : null,
      run.tokens && ms > 0 ? ['Tokens/s', format(Number((1e3 * run.tokens / ms).toPrecision(3))),
        `${group(run.tokens)} tokens of samples`] : null,
      modelOf(run, fact),
      fact('identity', 'dtype') ? ['Format', fact('identity', 'dtype'),
        [fact('identity', 'numerics') && `numerics ${fact('identity', 'numerics')}`, device]
          .filter(Boolean).join(', ')] : null];
    return html('ul', {class: 'tiles'}, list.filter(Boolean).map(([title, text, about]) =>
      html('li', {}, html('span', {}, title), html('b', {}, text), html('small', {}, about))));
  }

  function card(data, run, i) {
    const fact = (scope, key) => factOf(data, i, scope, key);
    const commit = fact('build', 'commit');
    const dirty = fact('build', 'dirty');
    const resumes = run.segments.slice(1).slice(-4).map(one => group(one.after));
    return html('article', {class: 'card', '--run': color(i)}, html('h3', {}, run.label),
      html('p', {class: 'tags'}, tag(run.kind), tag(...stateOf(run)),
        run.seals ? tag('sealed') : null),
      tiles(data, run, i),
      findings(run),
      pairs([
        ['uuid', hash(run.uuid)],
        ['steps', run.last < 0 ? 'none' : `${group(run.first)} to ${group(run.last)}`],
        ['segments', run.segments.length + (resumes.length
          ? `, resumed after step ${resumes.join(', ')}` : '')],
        ['weights', run.model.weights && hash(run.model.weights, 'the hash of the initial weights')],
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

  /* How a run compares with the first; of the first itself nothing. */
  function against(data, i) {
    const pair = data.pairs.find(one => one.b === i);
    if (!pair) return '';
    const word = pair.verdict === 'nothing' ? 'nothing compared' : pair.verdict;
    return html('span', {}, tag(word, TONES[pair.verdict]),
      pair.first === null ? null : ` from step ${group(pair.first)}`);
  }

  /* A row a run: what is compared first. */
  function overview(data) {
    const cell = told_ => told_ ? html('span', {class: 'num', title: told_[2]}, told_[1]) : '\u2013';
    const goals = data.runs.map(goal);
    const titles = [...new Set(goals.filter(Boolean).map(([title]) => title))];
    const reached = i => titles.map(title => cell(goals[i] && goals[i][0] === title && goals[i]));
    return table('Runs side by side', ['run', '', 'against the first', ...titles, 'evaluation',
      'steps', 'duration', 'warnings', 'errors'], data.runs.map((run, i) => row(runName(data, i),
      tag(...stateOf(run)), against(data, i), ...reached(i), cell(best(run)),
      number(group(stepsOf(run))), number(duration(lived(run))),
      number(group(run.levels.warning || 0)), number(group(run.levels.error || 0)))));
  }

  function show(data) {
    const [word, tone, sentence] = verdict(data);
    put('pill', tag(word, `big ${tone}`));
    byId('verdict').textContent = sentence;
    document.title = `${sentence} \u00b7 Invar report`;
    const cards = data.runs.map((run, i) => card(data, run, i));
    put('cards', data.runs.length < MANY ? cards : [overview(data), html('details', {},
      html('summary', {}, 'Each run'), html('div', {class: 'deck'}, cards))]);
  }

  return {show, place, TONES};
})();
