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
  const {html, format, group, byId, put, plural, color, tag, note, runName} = InvarPage;
  const {double} = InvarSeries;

  const AT_ONCE = 12; // samples; a button shows more
  const HIDDEN = new RegExp('[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c' +
    '\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]', 'g');

  const mean = list => list.reduce((sum, value) => sum + (value || 0), 0) / Math.max(list.length, 1);
  const known = value => Number.isNaN(value) ? Infinity : value; // NaN stands last

  /* By which samples are put in order: the smallest key comes first. */
  const ORDERS = {
    'worst reward first': one => known(one.reward),
    'best reward first': one => known(-one.reward),
    'largest advantage first': one => known(-Math.abs(one.advantage)),
    'least likely first': one => mean(one.logp),
    'longest first': one => -one.tokens,
    'newest first': one => -one.step,
    'oldest first': one => one.step,
  };
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
    const inserted = one.inserted.includes(i);
    const about = inserted ? 'inserted, not drawn' : `log-prob ${thousandth(one.logp[i])}, ` +
      `advantage ${thousandth(one.credit[i])}`;
    return html('span', {class: `token ${inserted ? 'inserted' : share > 2 ? kind : ''}`,
      '--share': `${share}%`, title: about}, plain(one.response[i]).replace(/\n/g, '\u21b5\n'));
  }

  /* Tokens of a response, and where some were left out how many. */
  function response(one, colour, most) {
    const out = one.response.map((text, i) => token(one, i, colour, most));
    if (one.cut) out.splice(one.cut[0], 0, html('em', {class: 'gap'},
      ` \u2026 ${plural(one.cut[1], 'token')} left out \u2026 `));
    return html('div', {class: 'said'}, out.length ? out : note('no token'));
  }

  function card(data, one, colour, most) {
    const facts = [['reward', format(one.reward, 5)],
      ...one.parts.map(([name, bits]) => [name, format(double(bits), 5)]),
      ['advantage', format(one.advantage, 5)], ['tokens', group(one.tokens)]];
    return html('article', {class: 'sample', '--run': color(one.run)},
      html('header', {},
        html('h3', {}, data.runs.length > 1 ? [runName(data, one.run), ', '] : null,
          `step ${group(one.step)}, sample ${group(one.idx)}`),
        html('span', {class: 'note'}, `prompt ${group(one.prompt)}`),
        tag(one.finish, one.finish === 'stop' ? '' : 'warn'),
        html('ul', {class: 'marks'}, facts.map(([name, value]) =>
          html('li', {}, html('span', {}, name), html('b', {}, value))))),
      html('div', {class: 'asked'}, plain(one.text)),
      response(one, colour, most));
  }

  function select(label, names, chosen, act) {
    const list = html('select', {}, names.map(name => html('option', {value: name}, name)));
    list.value = chosen;
    list.addEventListener('change', () => act(list.value));
    return html('label', {}, label, list);
  }

  /* What is asked for; it stays when a page is filled again. */
  const wish = {order: Object.keys(ORDERS)[0], step: 'all', colour: 'log-prob', shown: AT_ONCE};

  function draw(data, all) {
    const key = ORDERS[wish.order];
    const list = all.filter(one => wish.step === 'all' || one.step === Number(wish.step))
      .map(one => ({one, key: key(one)}))
      .sort((a, b) => a.key - b.key || b.one.step - a.one.step || a.one.idx - b.one.idx);
    const most = Math.max(1, ...list.map(({one}) =>
      one.credit.reduce((top, value) => Math.max(top, Math.abs(value || 0)), 0)));
    const colour = COLOURS[wish.colour];
    const rest = list.length - wish.shown;
    put('samples-body', colour.about ? note(colour.about) : null,
      html('div', {class: 'shelf'}, list.slice(0, wish.shown).map(({one}) =>
        card(data, one, colour, most))),
      rest > 0 ? html('button', {type: 'button', onclick: () => {
        wish.shown += AT_ONCE;
        draw(data, all);
      }}, `Show ${group(Math.min(rest, AT_ONCE))} more of ${group(rest)}`) : null);
  }

  function show(data) {
    const all = data.runs.flatMap((run, i) => run.samples.map(one => ({...one, run: i,
      reward: double(one.reward), advantage: double(one.advantage)})));
    byId('samples').hidden = all.length === 0;
    const steps = [...new Set(all.map(one => one.step))].sort((a, b) => a - b).map(String);
    if (!steps.includes(wish.step)) wish.step = 'all';
    const pick = member => value => {
      wish[member] = value;
      wish.shown = AT_ONCE;
      draw(data, all);
    };
    byId('samples-note').textContent = `${plural(all.length, 'sample')} of ` +
      `${plural(steps.length, 'step')} that the ledger has kept (keep-samples). ` +
      'Point at a token to see its numbers.';
    put('samples-tools', select('Order', Object.keys(ORDERS), wish.order, pick('order')),
      select('Step', ['all', ...steps], wish.step, pick('step')),
      select('Colour', Object.keys(COLOURS), wish.colour, pick('colour')));
    draw(data, all);
  }

  return {show};
})();
