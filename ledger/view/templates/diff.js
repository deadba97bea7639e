/*
 * diff.js - fills the page of `invar diff` from the JSON that stands in it.
 *
 * The data is what `invar diff --json` prints, and with it `texts`: what the program says in words,
 * and the decimal numbers of metrics. Text enters the page by textContent only. When all is drawn
 * the root element has data-ready; a failure stands there as data-failed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
'use strict';

(() => {
  const {html, svg, byId, tag, note, hash, table, pairs} = InvarPage;
  const root = document.documentElement;
  const TONES = {identical: 'good', different: 'bad', nondeterministic: 'bad', nothing: 'warn'};
  const ROWS = 2000;
  const OPEN_ROWS = 200;

  const add = (...children) => byId('main').append(html('section', {}, ...children));
  const title = text => html('h2', {}, text);
  const cell = (kind, text) => text === null ? html('td', {class: `${kind} none`}, 'absent')
    : html('td', {class: kind}, text);
  const digest = text => html('td', {class: 'digest', title: text}, text.slice(0, 16));
  const answer = value => value === null ? 'not recorded' : value ? 'yes' : 'no';

  /* A section with the rows that differ, unfolded if they are few, or only how many are equal. */
  function list(name, rows, equal, heads, cells) {
    const more = rows.length - ROWS;
    if (rows.length) add(title(name), html('details', {open: rows.length <= OPEN_ROWS ? '' : null},
      html('summary', {}, `${rows.length} differ `,
        html('span', {class: 'note'}, `\u00b7 ${equal}`)),
      table(name, heads, rows.slice(0, ROWS).map((one, i) =>
        html('tr', {class: one.first ? 'first' : null}, cells(one, i)))),
      more > 0 ? note([`... and ${more} more; `, html('code', {}, '--json'), ' has all.']) : null));
    else if (typeof equal === 'string' && !equal.startsWith('0'))
      byId('main').append(html('section', {class: 'slim'}, title(name),
        html('span', {class: 'note'}, equal)));
  }

  /* ---- head ---------------------------------------------------------------------------------- */

  function card(data, name) {
    const side = data[name];
    return html('div', {class: `card side-${name}`},
      html('h3', {}, html('span', {class: 'letter'}, name.toUpperCase()), ` ${side.name}`),
      pairs([['run', side.uuid], ['kind', side.kind],
        ['steps', side.first_step < 0 ? 'none' : `${side.first_step} to ${side.last_step}`],
        data.self ? ['segment', String(side.segment)] : ['segments', String(side.segments)],
        ['ledger', side.ledger],
        ['root', data.step < 0 ? null : hash(side.root)],
        ['chain', data.step < 0 ? null : hash(side.chain)]]));
  }

  function summary(data) {
    const at = data.headline.indexOf(': '); // the tag has the verdict
    document.title = `Invar diff: ${data.verdict}`;
    byId('pill').append(html('span', {class: `tag big ${TONES[data.verdict]}`}, data.verdict));
    byId('verdict').textContent = at < 0 ? data.headline : data.headline.slice(at + 2);
    byId('cards').append(card(data, 'a'), card(data, 'b'));
  }

  /* The common steps as a band: equal up to the divergent one, different from there. */
  function steps(data) {
    const {first_step: first, last_step: last} = data.compared;
    const at = last >= first ? 100 * (data.step - first) / (last - first + 1) : 0;
    if (data.step < 0 || data.self) return;
    add(title(`Step ${data.step}`), html('div', {class: 'strip'},
      svg('svg', {role: 'img', 'aria-label': `equal before step ${data.step}`},
        svg('rect', {class: 'equal', width: `${at}%`, height: 22}),
        svg('rect', {class: data.roots_differ ? 'different' : 'mixed', x: `${at}%`,
          width: `${100 - at}%`, height: 22})),
      html('div', {class: at > 60 ? 'flag left' : 'flag', '--at': `${at}%`},
        html('span', {}, `step ${data.step}`))),
    note(`Steps ${first} to ${last} are in both runs. ` + (data.roots_differ
      ? 'Found by binary search over the chains.' : 'Their tensors are equal.')),
    pairs([['same data', answer(data.same_batch)], ['same rng', answer(data.same_rng)],
      ['same weights before it', answer(data.same_weights)]], true));
  }

  function culprit({culprit: at, same_weights: weights, texts}) {
    if (!at) return;
    add(title('Where it begins'), note('The first point in order of execution whose ' +
      (at.inputs === 0 ? 'value differs; what it is made of is not on record.'
        : 'inputs are equal and whose value is not' +
          (weights === false ? '; the weights differ, too.' : '.'))),
    html('div', {class: 'culprit'}, html('h3', {}, at.name),
      at.inputs ? tag(`${at.inputs} input${at.inputs === 1 ? '' : 's'} equal` +
        (at.bridged ? ' where both have them' : ''), 'good') : null,
      tag('value differs', 'bad'),
      pairs([['phase', at.phase], ['layer', at.layer === null ? null : String(at.layer)],
        ['op', at.op], ['parts', texts.fused], ['kind', at.kind], ['dtype', at.dtype],
        ['shape', at.shape], ['A', hash(at.a)], ['B', hash(at.b)]], true)));
  }

  /* Points that differ, by phase and layer; the first column is for points of no layer. */
  function chart({points, groups, culprit: at}) {
    if (!points.length) return;
    const phases = [...new Set(groups.map(one => one.phase))];
    const layers = Math.max(...groups.map(one => one.layer ?? -1)) + 1;
    const box = (phase, layer) => {
      const here = groups.filter(one => one.phase === phase && one.layer === layer);
      const different = here.reduce((sum, one) => sum + one.different, 0);
      const all = here.reduce((sum, one) => sum + one.equal, different);
      const born = at && at.phase === phase && at.layer === layer;
      if (!all) return html('td', {});
      if (!different) return html('td', {class: 'equal', title: `${all} equal`});
      return html('td', {class: born ? 'differ born' : 'differ',
        '--share': `${Math.round(35 + 65 * different / all)}%`,
        title: `${different} of ${all} differ`}, String(different));
    };
    const columns = [null, ...Array(layers).keys()];
    add(title('How far it reaches'),
      note('Points that differ, by phase and layer. The frame marks where it begins.'),
      html('div', {class: 'scroll map'}, html('table', {class: 'heat'},
        html('thead', {}, html('tr', {}, html('th', {}), columns.map(layer =>
          html('th', {}, layer === null ? '\u2013' : String(layer))))),
        html('tbody', {}, phases.map(phase => html('tr', {}, html('th', {}, phase),
          columns.map(layer => box(phase, layer))))))));
  }

  /* ---- tables -------------------------------------------------------------------------------- */

  function points(data) {
    const unknown = ['a', 'b'].filter(name => !data[name].digests).map(name => name.toUpperCase());
    if (!data.texts.points) return;
    if (unknown.length) add(title('Points'), html('p', {}, 'The digests of points are not in the ' +
      `ledger of ${unknown.join(' and ')}: only the root of the step is known.`));
    else list('Points', data.points.map(one => ({...one, first: data.culprit &&
      one.ord === data.culprit.ord})), `${data.points_equal} equal`,
    ['Point', 'Phase', 'Layer', 'Op', 'Kind', 'Type', 'A', 'B', 'Note'], one => [
      cell('name', one.name), cell('', one.phase), cell('', String(one.layer ?? '')),
      cell('', one.op), cell('', one.kind), cell('', `${one.dtype} ${one.shape}`), digest(one.a),
      digest(one.b), cell('', [one.born ? 'begins here' : null,
        one.level ? 'not in the root' : null].filter(Boolean).join(', '))]);
  }

  function tables(data) {
    const number = (text, bits) => text === null ? cell('num', null)
      : html('td', {class: 'num'}, text, html('br'), html('small', {class: 'mono none'}, bits));
    points(data);
    list('Structure', data.changes, data.changes.length &&
      `A has ${data.points_a} points, B ${data.points_b}`, ['Point', 'What', 'A', 'B'], one =>
      [cell('name', one.point), cell('', one.what), cell('value', one.a), cell('value', one.b)]);
    list('Metrics', data.metrics, `${data.metrics_equal} equal`, ['Metric', 'A', 'B', 'Distance'],
      (one, i) => {
        const [a, b, distance] = data.texts.metrics[i];
        return [cell('name', one.name), number(a, one.a_bits), number(b, one.b_bits),
          cell('num', distance)];
      });
    list('Samples', data.samples, `${data.samples_equal} equal`,
      ['Sample', 'Prompt', 'What differs'], one => [cell('', String(one.index)),
        cell('', String(one.prompt_a ?? one.prompt_b)), cell('', one.in_a && one.in_b
          ? one.differ.join(', ') : `only in ${one.in_a ? 'A' : 'B'}`)]);
    list('Facts', data.facts, `${data.facts_equal} equal`, ['Scope', 'Fact', 'A', 'B'], one =>
      [cell('none', one.scope), cell('', one.key), cell('value', one.a), cell('value', one.b)]);
  }

  function build() {
    const data = JSON.parse(byId('data').textContent);
    const {compared, replies_different: different} = data;
    summary(data);
    steps(data);
    culprit(data);
    chart(data);
    tables(data);
    const counts = pairs(Object.entries({steps: compared.steps, points: compared.points,
      metrics: compared.metrics, samples: compared.samples,
      replies: data.replies_equal + different, 'replies that differ': different,
      'steps only in A': compared.only_a, 'steps only in B': compared.only_b})
      .map(([name, value]) => [name, String(value)]), true);
    counts.classList.add('counts');
    add(title('What was compared'), counts);
    if (data.texts.next.length) add(title('Next'), note(data.texts.replay
      ? 'To find the op that differs, execute the step again.' : 'To see the numbers of the step.'),
    html('pre', {}, `${data.texts.next.join('\n')}\n`));
    root.setAttribute('data-ready', '');
  }

  addEventListener('error', event => root.setAttribute('data-failed', event.message));
  build();
})();
