/*
 * bisect.js - fills the page of `invar bisect` from the JSON that stands in it.
 *
 * The data is what `invar bisect --json` prints, and with it `texts`: what the program says in
 * words. Text enters the page by textContent only. When all is drawn the root element has
 * data-ready; a failure stands there as data-failed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
'use strict';

(() => {
  const {html, svg, byId, note, table, pairs} = InvarPage;
  const root = document.documentElement;
  const TONES = {found: 'good', changes: 'good', nondeterministic: 'bad', 'wrong-end': 'bad',
    untestable: 'bad'};
  const ROWS = 2000;
  const SHOWN_ROWS = 100; // of the picture
  const DIGITS = 12; // of a commit id
  const VALUE_DIGITS = 8;
  const [LEFT, WIDTH, ROW, TOP, RADIUS] = [96, 1000, 20, 34, 5]; // of the picture

  const add = (...children) => byId('main').append(html('section', {}, ...children));
  const title = text => html('h2', {}, text);
  const hash = text => text === null ? null : html('code', {class: 'hash'}, text);
  const cell = (kind, text) => html('td', {class: kind}, text ?? '');
  const short = (kind, text, digits) =>
    html('td', {class: kind, title: text ?? ''}, (text ?? '').slice(0, digits));
  const big = (text, tone) => html('span', {class: `tag big ${tone}`}, text);
  const count = value => String(value);

  /* 0.42 s, 3 min 5 s, 2 h 7 min */
  function span(seconds) {
    const whole = seconds > 0 ? Math.floor(seconds + 0.5) : 0;
    if (whole < 60) return `${Math.max(seconds, 0).toFixed(whole < 10 ? 2 : 0)} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    return `${Math.floor(whole / 3600)} h ${Math.floor(whole / 60) % 60} min`;
  }

  function list(name, about, rows, heads, cells) {
    const more = rows.length - ROWS;
    if (rows.length) add(title(name), note(about), table(name, heads, rows.slice(0, ROWS)
      .map((one, i) => html('tr', {}, cells(one, i)))),
    more > 0 ? note([`... and ${more} more; `, html('code', {}, '--json'), ' has all.']) : null);
  }

  /* ---- the summary --------------------------------------------------------------------------- */

  function card(kind, name, list) {
    const shown = html('div', {class: `card ${kind}-card`}, html('h3', {}, name), pairs(list));
    byId('cards').append(shown);
    return shown;
  }

  function summary(data) {
    const {verdict, texts} = data;
    const rest = data.headline.slice(data.headline.indexOf(': ') + 2); // the tag has the verdict
    const blank = verdict === 'found' ? rest.indexOf(' ') : -1; // the end of the commit id
    document.title = `Invar bisect: ${verdict}`;
    byId('pill').append(big(verdict, TONES[verdict] || 'warn'));
    if (verdict === 'found') byId('pill').append(' ', data.confirmed ? big('confirmed', 'good')
      : big('not confirmed', 'warn'));
    if (data.third) byId('pill').append(' ', big('more than one change', 'warn'));
    byId('verdict').replaceChildren(blank < 0 ? '' : html('code', {}, rest.slice(0, blank)),
      blank < 0 ? rest : rest.slice(blank));
    byId('advice').append(...[data.story, data.advice, texts.third].filter(Boolean)
      .map(text => html('p', {class: 'advice'}, text)));
  }

  function commit({culprit: at, texts}) {
    if (!at) return;
    const more = at.files_changed - at.files.length;
    card('commit', 'The commit', [['commit', hash(at.commit)], ['author', at.author],
      ['date', at.date], ['subject', at.subject], ['parent', hash(at.parent)],
      ['before', hash(at.before)], ['after', hash(at.after)], ['remark', texts.changes[0][1]],
      ['confirmed', texts.confirmed],
      ['files', `${at.files_changed} changed, +${at.added} -${at.removed}`]])
      .append(html('ul', {class: 'files'}, at.files.map(file =>
        html('li', {}, `${file.status} ${file.path}`, file.added === null ? ' binary'
          : [' ', html('span', {class: 'plus'}, `+${file.added}`), ' ',
            html('span', {class: 'minus'}, `-${file.removed}`)])),
      more > 0 ? html('li', {}, `... and ${more} more`) : null));
  }

  function place({place: at, texts}) {
    if (!at) return;
    card('place', 'Where it begins', [
      ['step', at.step < 0 ? 'before the first' : count(at.step)], ['point', at.point],
      ['phase', at.phase], ['layer', at.layer === null ? null : count(at.layer)], ['op', at.op],
      ['parts', at.fused], [at.before ? 'tensor' : 'kind',
        [at.kind, at.dtype, at.shape].map(text => text ?? '').join(' ')],
      ['before', hash(at.before)], ['after', hash(at.after)],
      at.before ? ['points', texts.points] : ['in words', at.headline]]);
  }

  function cost(data) {
    const all = data.cost;
    card('cost', 'The search', [['question', data.question], ['good', hash(data.good)],
      ['bad', hash(data.bad)], ['base', hash(data.base)],
      ['commits', data.range > 0 ? count(data.range) : null],
      ['ends part', data.first_parted === null ? null : count(data.first_parted)],
      ['trials', count(all.trials)], ['of search', count(all.search_trials)],
      ['built', count(all.built)], ['from cache', count(all.from_tree)], ['ran', count(all.ran)],
      ['equal prog.', count(all.from_program)], ['skipped', count(all.skipped)],
      ['building', span(all.build_s)], ['running', span(all.run_s)], ['in all', span(all.wall_s)],
      ['folder', data.work.folder]]);
  }

  /* ---- lists of commits ---------------------------------------------------------------------- */

  function commitCells(one, inner) {
    return [short(inner ? 'commit-id inner' : 'commit-id', one.commit, DIGITS),
      cell('num', one.date.split('T')[0]), cell('value', one.author), cell('value', one.subject)];
  }

  function commits(data) {
    if (data.verdict === 'changes')
      list('Changes', 'Every commit whose value is another than its parent\'s, oldest first.',
        data.changes, ['Commit', 'Date', 'Author', 'Subject', 'Before', 'After', 'Where', 'Remark'],
        (one, i) => [commitCells(one, one.depth > 0), short('digest', one.before, VALUE_DIGITS),
          short('digest', one.after, VALUE_DIGITS),
          data.texts.changes[i].map(text => cell('value', text))]);
    if (data.verdict === 'suspects')
      list('Suspects', `One of ${data.all_suspects} is the first bad one; ` +
        `${data.suspects.length} are shown.`, data.suspects,
      ['Commit', 'Date', 'Author', 'Subject'], one => commitCells(one, false));
  }

  /* The patch, with classes for added and removed lines. */
  function patch(data) {
    if (!data.patch) return;
    const kinds = {'+': 'plus', '-': 'minus'};
    add(title('What it changes'), note('Against its first parent.'), html('div', {class: 'scroll'},
      html('pre', {class: 'patch'}, data.patch.replace(/\n$/, '').split('\n').map(line =>
        [html('span', {class: kinds[line[0]] || 'same'}, line.slice(0, 1023)), '\n']))),
    data.patch_cut ? note('There is more: git show has all of it.') : null);
  }

  /* ---- the picture of the search ------------------------------------------------------------- */

  /* A circle, square, diamond or cross; hollow for the second run of a commit. */
  function mark(verdict, again, x, y) {
    const more = again ? ' again' : '';
    if (verdict === 'good')
      return svg('circle', {class: `mark good${more}`, cx: x, cy: y, r: RADIUS});
    if (verdict === 'bad') return svg('path', {class: `mark bad${more}`,
      d: `M${x - RADIUS} ${y - RADIUS}h10v10h-10z`});
    if (verdict === 'third')
      return svg('path', {class: `mark third${more}`, d: `M${x} ${y - 6}l6 6l-6 6l-6 -6z`});
    return svg('path', {class: 'mark skip', d: `M${x - RADIUS} ${y - RADIUS}l10 10m-10 0l10 -10`});
  }

  function row(trial, x, y) {
    const id = trial.commit.slice(0, DIGITS);
    return [svg('path', {class: 'row', d: `M${LEFT} ${y}H${WIDTH - 12}`}),
      svg('text', {x: 0, y: y + 4, class: 'mono'}, id),
      svg('g', {}, svg('title', {}, `${id}${trial.subject ? ` ${trial.subject}` : ''}: ` +
        `${trial.verdict}, ${trial.role}`), mark(trial.verdict, trial.role === 'again', x, y))];
  }

  function legend() {
    const words = [['good', false, 'good'], ['bad', false, 'bad'],
      ['third', false, 'another value than both ends'], ['skip', false, 'cannot be tested'],
      ['bad', true, 'hollow: asked again']];
    return html('p', {class: 'key legend-row'}, words.map(([verdict, again, text]) =>
      html('span', {}, svg('svg', {viewBox: '-7 -7 14 14', 'aria-hidden': 'true'},
        mark(verdict, again, 0, 0)), text)));
  }

  /* The range as a strip, and the path of the search from trial to trial. */
  function search(data) {
    const xOf = position =>
      LEFT + (data.range > 0 ? (WIDTH - LEFT - 12) * position / data.range : 0);
    // A good end is not in the range and is drawn before it; other commits outside are not drawn.
    const shown = data.trials.filter(one => one.position === null
      ? one.commit === data.good || one.commit === data.base : one.position <= data.range)
      .slice(0, SHOWN_ROWS).map((trial, i) =>
        ({trial, x: xOf(trial.position ?? 0), y: TOP + ROW * i}));
    const goal = data.culprit && data.trials.findLast(one => one.commit === data.culprit.commit);
    const height = TOP + ROW * shown.length + 6;
    if (!shown.length) return;
    add(title('How it was found'), note(`${data.range} commits from the good end on the left to ` +
      'the bad end on the right, parents before children; one row a trial, in order' +
      `${goal?.position ? '; the dashed line is the commit that was found' : ''}.`),
    html('div', {class: 'scroll walk'}, svg('svg', {viewBox: `0 0 ${WIDTH} ${height}`, role: 'img',
      'aria-label': 'the trials in order, by the place of their commits in the range'},
    svg('rect', {class: 'range', x: LEFT, y: 4, width: WIDTH - LEFT - 12, height: 14, rx: 4}),
    svg('text', {x: 0, y: 15}, 'oldest first'),
    svg('path', {class: 'way', d: `M${shown.map(({x, y}) => `${x} ${y}`).join('L')}`}),
    goal?.position ? svg('path', {class: 'goal', d: `M${xOf(goal.position)} 4V${height}`}) : null,
    shown.map(({trial, x, y}) => [mark(trial.verdict, false, x, 11), row(trial, x, y)]))),
    legend());
  }

  /* ---- tables -------------------------------------------------------------------------------- */

  function trials(data) {
    list('Trials', 'In order; what took no time came from the cache.', data.trials,
      ['Trial', 'Commit', 'Subject', 'Role', 'Verdict', 'Value', 'How', 'Parts', 'Exit', 'Build',
        'Run', 'Why'], (one, i) => [cell('num', count(i + 1)),
        short('commit-id', one.commit, DIGITS), cell('value', one.subject), cell('num', one.role),
        cell('num', one.verdict), short('digest', one.value, DIGITS), cell('', one.via),
        one.parted === null ? cell('', '') : cell('num', `step ${one.parted}`),
        cell('num', count(one.exit_code)), cell('num', one.build_s > 0 ? span(one.build_s) : ''),
        cell('num', one.run_s > 0 ? span(one.run_s) : ''), cell('value', one.story)]);
  }

  function build() {
    const data = JSON.parse(byId('data').textContent);
    summary(data);
    commit(data);
    place(data);
    cost(data);
    commits(data);
    patch(data);
    search(data);
    trials(data);
    if (data.texts.next.length)
      add(title('Next'), html('pre', {}, `${data.texts.next.join('\n')}\n`));
    root.setAttribute('data-ready', '');
  }

  addEventListener('error', event => root.setAttribute('data-failed', event.message));
  build();
})();
