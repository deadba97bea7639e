/*
 * samples.js - the samples that a run has kept: what the model was asked, what it said, and how each
 * token was judged.
 *
 * Texts are those of a stranger: they enter the page by textContent only, and characters that nobody
 * sees, or that turn the direction of others, are written as their numbers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
'use strict';

const InvarSamples = (() => {
  const {html, format, group, byId, settle, put, plural, color, tag, note, runName} = InvarPage;
  const {double} = InvarSeries;

  const AT_ONCE = 12; // samples; a button shows more
  /* Controls, formats, what is private or half a pair, fillers, variants of glyphs. */
  const HIDDEN = new RegExp('(?![\\t\\n])[\\p{Cc}\\p{Cf}\\p{Co}\\p{Cs}\\p{Zl}\\p{Zp}\\u034f\\u115f' +
    '\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u2800\\u3164\\uffa0\\ufe00-\\ufe0f\\u{e0100}-\\u{e01ef}]', 'gu');
  const PIECE = '\u25ab'; // of a character that needs several tokens

  const drawn = (one, i) => !one.inserted.includes(i);

  /* Of the tokens that the model drew; NaN where one is not finite. */
  function likelihood(one) {
    const list = one.logp.filter((value, i) => drawn(one, i));
    return list.includes(null) ? NaN : list.reduce((sum, value) => sum + value, 0) /
      Math.max(list.length, 1);
  }

  const rewarded = one => one.reward !== null; // an answer from the data has no reward

  /* NaN where the number is not finite; samples without a reward come last. */
  const byReward = number => one => !rewarded(one) ? Infinity
    : Number.isFinite(number(one)) ? number(one) : NaN;

  /* By which samples are put in order: the smallest key comes first, NaN before all. */
  const ORDERS = {
    'worst reward first': byReward(one => one.reward),
    'best reward first': byReward(one => -one.reward),
    'largest advantage first': byReward(one => -Math.abs(one.advantage)),
    'least likely first': likelihood,
    'longest first': one => -one.tokens,
    'newest first': one => -one.step,
    'oldest first': one => one.step,
  };
  const byKey = (a, b) => Number.isNaN(b.key) - Number.isNaN(a.key) || a.key - b.key;
  const COLOURS = {
    'log-prob': {
      about: 'The stronger the colour, the less likely the token was.',
      of: (one, i) => one.logp[i] === null ? [1, 'doubt'] : [-one.logp[i] / 5000, 'doubt'],
    },
    advantage: {
      about: 'Green tokens become likelier by learning, orange ones less likely.',
      of: (one, i, most) => [Math.abs(one.credit[i] || 0) / most,
        one.credit[i] >= 0 ? 'gain' : 'loss'],
    },
    none: {about: '', of: () => [0, '']},
  };
  /* Orders and colours that need a sample with a reward. */
  const OF_REWARDS = ['worst reward first', 'best reward first', 'largest advantage first',
    'advantage'];

  /* Text in which nothing is hidden. */
  function plain(text) {
    return text.replace(HIDDEN, char =>
      `\u27e8U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}\u27e9`);
  }

  function thousandth(value) {
    return value === null ? 'not finite' : format(value / 1000, 4);
  }

  function token(one, i, colour, most) {
    const [strength, kind] = colour.of(one, i, most);
    const share = Math.round(100 * Math.min(Math.max(strength, 0), 1));
    const inserted = !drawn(one, i);
    const text = plain(one.response[i]).replace(/\n/g, '\u21b5\n');
    const about = inserted ? 'inserted, not drawn' : `log-prob ${thousandth(one.logp[i])}` +
      (rewarded(one) ? `, advantage ${thousandth(one.credit[i])}` : '');
    return html('span', {class: `token ${inserted ? 'inserted' : share > 2 ? kind : ''}`,
      '--share': `${share}%`, title: text ? about : `part of the next character; ${about}`},
    text || PIECE);
  }

  /* Tokens of a response, and where some were left out how many. */
  function response(one, colour, most) {
    const out = one.response.map((text, i) => token(one, i, colour, most));
    if (one.cut) out.splice(one.cut[0], 0, html('em', {class: 'gap'},
      ` \u2026 ${plural(one.cut[1], 'token')} left out \u2026 `));
    return html('div', {class: 'said'}, out.length ? out : note('no token'));
  }

  /* What the data set expects; null where it has no label, or the ledger is older than labels. */
  function wanted(one) {
    return one.label ? html('div', {class: 'wanted'}, html('span', {}, 'label'),
      plain(one.label)) : null;
  }

  function card(data, one, colour, most) {
    const facts = [...rewarded(one) ? [['reward', format(one.reward, 5)],
      ...one.parts.map(([name, bits]) => [name, format(double(bits), 5)]),
      ['advantage', format(one.advantage, 5)]] : [], ['tokens', group(one.tokens)]];
    return html('article', {class: 'sample', '--run': color(one.run)},
      html('header', {},
        html('h3', {}, data.runs.length > 1 ? [runName(data, one.run), ', '] : null,
          `step ${group(one.step)}, sample ${group(one.idx)}`),
        html('span', {class: 'note'}, `prompt ${group(one.prompt)}`),
        tag(one.finish, one.finish === 'stop' ? '' : 'warn'),
        html('ul', {class: 'marks'}, facts.map(([name, value]) =>
          html('li', {}, html('span', {}, name), html('b', {}, value))))),
      html('div', {class: 'asked'}, plain(one.text)),
      response(one, colour, most),
      wanted(one));
  }

  function select(label, names, chosen, act) {
    const list = html('select', {}, names.map(name => html('option', {value: name}, name)));
    list.value = chosen;
    list.addEventListener('change', () => act(list.value));
    return html('label', {}, label, list);
  }

  const offered = list =>
    Object.keys(list).filter(name => !OF_REWARDS.includes(name) || newest.all.some(rewarded));

  /* What is asked for; it stays when there are new samples. */
  const wish = {order: null, step: 'all', colour: 'log-prob', shown: AT_ONCE};

  let newest = null; // {data, all}: the newest data, and its samples
  let names = new Set(); // of the samples that were there when they were last drawn
  const tools = {};

  const nameOf = one => `${one.run} ${one.step} ${one.idx}`;

  function shelf() {
    const key = ORDERS[wish.order];
    const list = newest.all.filter(one => wish.step === 'all' || one.step === Number(wish.step))
      .map(one => ({one, key: key(one)}))
      .sort((a, b) => byKey(a, b) || b.one.step - a.one.step || a.one.idx - b.one.idx);
    const most = Math.max(1, ...list.map(({one}) =>
      one.credit.reduce((top, value) => Math.max(top, Math.abs(value || 0)), 0)));
    const colour = COLOURS[wish.colour];
    const rest = list.length - wish.shown;
    names = new Set(newest.all.map(nameOf));
    put('samples-body', colour.about ? note(colour.about) : null,
      html('div', {class: 'shelf'}, list.slice(0, wish.shown).map(({one}) =>
        card(newest.data, one, colour, most))),
      rest > 0 ? html('button', {type: 'button', onclick: () => {
        wish.shown += AT_ONCE;
        draw();
      }}, `Show ${group(Math.min(rest, AT_ONCE))} more of ${group(rest)}`) : null);
  }

  /* Somebody may be reading: what is new waits for a button. */
  function waiting() {
    const fresh = newest.all.filter(one => !names.has(nameOf(one))).length;
    tools.fresh.hidden = fresh === 0;
    tools.fresh.textContent = `Show ${plural(fresh, 'new sample')}`;
  }

  function draw() {
    shelf();
    waiting();
  }

  function makeTools() {
    const pick = member => value => {
      wish[member] = value;
      wish.shown = AT_ONCE;
      draw();
    };
    const orders = offered(ORDERS);
    wish.order = orders[0];
    tools.step = select('Step', ['all'], wish.step, pick('step'));
    tools.fresh = html('button', {type: 'button', hidden: true, onclick: draw});
    put('samples-tools', select('Order', orders, wish.order, pick('order')), tools.step,
      select('Colour', offered(COLOURS), wish.colour, pick('colour')), tools.fresh);
  }

  /* The steps to choose from; the chosen one stays, also where the page has no sample of it now. */
  function offer(steps) {
    const list = tools.step.querySelector('select');
    settle(list, ['all', ...steps].map(name => html('option', {value: name}, name)));
    list.value = wish.step;
  }

  /* How many samples of how many there are here, of how many steps. */
  function counted(data, steps) {
    const sum = member => data.runs.reduce((total, run) => total + run.kept[member], 0);
    const of = (here, all, word) => here < all
      ? `${group(here)} of ${plural(all, word)}` : plural(all, word);
    byId('samples-note').textContent =
      `${of(newest.all.length, sum('samples'), 'kept sample')}, ` +
      `${of(steps, sum('steps'), 'step')} (keep-samples). ` +
      (newest.all.length === sum('samples') ? '' : newest.all.some(rewarded)
        ? 'The lowest and the highest rewards of all are here; else steps are chosen evenly, and ' +
          'of a step samples from its lowest reward to its highest. '
        : 'Steps are chosen evenly, and so are samples of a step. ') +
      (sum('over') ? `${plural(sum('over'), 'sample')} left out: a page reads 64 MiB of kept text. `
        : '') +
      'Point at a token to see its numbers.';
  }

  function show(data) {
    const all = data.runs.flatMap((run, i) => run.samples.map(one => ({...one, run: i,
      reward: one.reward && double(one.reward),
      advantage: one.advantage && double(one.advantage)})));
    const places = new Set(all.map(one => `${one.run} ${one.step}`));
    const steps = new Set([...all.map(one => one.step),
      ...wish.step === 'all' ? [] : [Number(wish.step)]]);
    const first = newest === null || newest.all.length === 0;
    newest = {data, all};
    byId('samples').hidden = all.length === 0;
    if (all.length === 0) return;
    if (!tools.step) makeTools();
    offer([...steps].sort((a, b) => a - b).map(String));
    counted(data, places.size);
    if (first) draw();
    else waiting();
  }

  return {show};
})();
