-- 1.sql - the ledger's tables and views, version 1. Needs SQLite 3.37 (STRICT).
--
-- docs/ledger.md explains it. In short: a run is a list of entries, one a transaction. Every other
-- row belongs to the entry that wrote it and ends with `sum`, a hash of its own values; an entry
-- holds the number and the sum of its rows' sums, and a chain over the entries before it. Rows are
-- only ever added (triggers refuse the rest). Digests are 16 bytes,
-- XXH3-128 in canonical form. X_bits is the IEEE-754 pattern of a double, and the truth; X beside
-- it is for reading and sorting (NULL for NaN; -0 reads as 0).
-- SPDX-License-Identifier: Apache-2.0

-- ---- the log of transactions -------------------------------------------------------------------

CREATE TABLE entry(
  run INTEGER NOT NULL, n INTEGER NOT NULL, -- from 0, without a gap
  kind TEXT NOT NULL,                       -- begin resume step event evaluation checkpoint ...
  ns INTEGER NOT NULL,                      -- wall clock, Unix time in nanoseconds
  rows INTEGER NOT NULL, total INTEGER NOT NULL, -- count, and sum modulo 2^64, of its rows' sums
  chain BLOB NOT NULL CHECK(length(chain) = 16),
  PRIMARY KEY(run, n)) STRICT, WITHOUT ROWID;

-- ---- runs --------------------------------------------------------------------------------------

CREATE TABLE run(
  run INTEGER PRIMARY KEY, entry INTEGER NOT NULL,
  uuid TEXT NOT NULL UNIQUE,                -- 32 random hexadecimal digits
  name TEXT NOT NULL,
  kind TEXT NOT NULL,                       -- train eval ci ab bisect replay
  identity BLOB NOT NULL CHECK(length(identity) = 16), -- hash of the table identity
  parent TEXT, fork_step INTEGER,           -- uuid and step of the run that this one starts from
  sum INTEGER NOT NULL) STRICT;

CREATE TABLE identity(                      -- the effective semantic keys: what may change bits
  run INTEGER NOT NULL, key TEXT NOT NULL, entry INTEGER NOT NULL, value TEXT NOT NULL,
  sum INTEGER NOT NULL,
  PRIMARY KEY(run, key)) STRICT, WITHOUT ROWID;

CREATE TABLE segment(                       -- one life of a process; a resume begins the next
  run INTEGER NOT NULL, seg INTEGER NOT NULL, entry INTEGER NOT NULL,
  after_step INTEGER NOT NULL,              -- the last step it builds on; -1: none
  chain BLOB NOT NULL CHECK(length(chain) = 16), -- the chain at that step; zeros: none
  sum INTEGER NOT NULL,
  PRIMARY KEY(run, seg)) STRICT, WITHOUT ROWID;

CREATE TABLE finish(                        -- how a segment ended; a killed one has no row here
  run INTEGER NOT NULL, seg INTEGER NOT NULL, entry INTEGER NOT NULL,
  exit_code INTEGER NOT NULL, reason TEXT NOT NULL, sum INTEGER NOT NULL,
  PRIMARY KEY(run, seg)) STRICT, WITHOUT ROWID;

CREATE TABLE fact(                          -- provenance, free keys, whatever names a circumstance
  run INTEGER NOT NULL, seg INTEGER NOT NULL,
  scope TEXT NOT NULL,                      -- build host gpu free env ab ci ...
  key TEXT NOT NULL, entry INTEGER NOT NULL, value TEXT NOT NULL, sum INTEGER NOT NULL,
  PRIMARY KEY(run, seg, scope, key)) STRICT, WITHOUT ROWID;

CREATE TABLE object(                        -- larger facts: a dirty diff, a recipe, an environment
  run INTEGER NOT NULL, hash BLOB NOT NULL CHECK(length(hash) = 16), entry INTEGER NOT NULL,
  kind TEXT NOT NULL, data BLOB NOT NULL, sum INTEGER NOT NULL,
  UNIQUE(run, hash)) STRICT;

-- ---- steps -------------------------------------------------------------------------------------

CREATE TABLE step(
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL, entry INTEGER NOT NULL,
  weights INTEGER NOT NULL,                 -- version of the weights before the step
  batch BLOB NOT NULL CHECK(length(batch) = 16),     -- hash of what it was trained on
  rng BLOB NOT NULL CHECK(length(rng) = 16),         -- hash of the random coordinates it used
  root BLOB NOT NULL CHECK(length(root) = 16),       -- hash of the digests of level 0
  chain BLOB NOT NULL CHECK(length(chain) = 16),     -- hash of the previous chain and root
  content BLOB NOT NULL CHECK(length(content) = 16), -- hash of all the step's content
  sum INTEGER NOT NULL,
  PRIMARY KEY(run, step, seg)) STRICT, WITHOUT ROWID; -- the newest segment is one seek away

CREATE TABLE series(series INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;

CREATE TABLE metric(
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL,
  series INTEGER NOT NULL REFERENCES series,
  value_bits INTEGER NOT NULL, value REAL, sum INTEGER NOT NULL,
  PRIMARY KEY(run, step, seg, series)) STRICT, WITHOUT ROWID;

CREATE TABLE manifest(                      -- which points are hashed, in order of execution
  manifest INTEGER PRIMARY KEY,
  hash BLOB NOT NULL UNIQUE CHECK(length(hash) = 16), -- of its points
  points INTEGER NOT NULL) STRICT;

CREATE TABLE point(
  manifest INTEGER NOT NULL REFERENCES manifest, ord INTEGER NOT NULL,
  name TEXT NOT NULL,                       -- unique in the manifest, stable across versions
  phase TEXT NOT NULL,                      -- rollout forward backward optimizer ...
  layer INTEGER,                            -- NULL: of no layer
  op TEXT NOT NULL, kind TEXT NOT NULL,     -- kind: act grad param opt logits logp data
  level INTEGER NOT NULL,                   -- 0: part of the root; above: diagnosis only
  dtype TEXT NOT NULL, shape TEXT NOT NULL, -- shape: a JSON array
  shards INTEGER NOT NULL,                  -- logical shards of the tree hash
  replicated INTEGER NOT NULL,              -- 1: every rank must hold the same
  inputs TEXT NOT NULL,                     -- JSON array: ords of the points it is computed from
  UNIQUE(manifest, name),
  PRIMARY KEY(manifest, ord)) STRICT, WITHOUT ROWID;

CREATE TABLE digest(                        -- 16 bytes a point, in the manifest's order
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL,
  rank INTEGER NOT NULL,                    -- 0: the logical tensors; above: a rank's replicas
  manifest INTEGER NOT NULL REFERENCES manifest, data BLOB NOT NULL, sum INTEGER NOT NULL,
  UNIQUE(run, step, seg, rank)) STRICT;

CREATE TABLE stat(                          -- of single tensors, sparse: odd or sampled ones
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL, rank INTEGER NOT NULL,
  ord INTEGER NOT NULL,                     -- in the manifest of the step's digests
  nans INTEGER NOT NULL, infs INTEGER NOT NULL,
  absmax_bits INTEGER NOT NULL, absmax REAL, l2_bits INTEGER NOT NULL, l2 REAL,
  sum INTEGER NOT NULL,
  PRIMARY KEY(run, step, seg, rank, ord)) STRICT, WITHOUT ROWID;

CREATE TABLE sample(
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL,
  idx INTEGER NOT NULL,                     -- in the batch
  prompt INTEGER NOT NULL, prompt_hash BLOB NOT NULL CHECK(length(prompt_hash) = 16),
  rng TEXT NOT NULL,                        -- coordinates that generate it again
  weights_first INTEGER NOT NULL, weights_last INTEGER NOT NULL, -- versions that sampled it
  weights_hash BLOB NOT NULL CHECK(length(weights_hash) = 16),
  prompt_tokens INTEGER NOT NULL, tokens INTEGER NOT NULL,
  token_hash BLOB NOT NULL CHECK(length(token_hash) = 16),
  rollout_logp BLOB NOT NULL CHECK(length(rollout_logp) = 16),   -- hashes of the log-probs
  train_logp BLOB NOT NULL CHECK(length(train_logp) = 16),
  reward_bits INTEGER NOT NULL, reward REAL, advantage_bits INTEGER NOT NULL, advantage REAL,
  diff_bits INTEGER NOT NULL, diff REAL,    -- largest |rollout log-prob - training log-prob|
  diff_at INTEGER NOT NULL,                 -- position of that token; -1: none
  finish TEXT NOT NULL,                     -- stop length abort ...
  arrival INTEGER NOT NULL,                 -- order of completion: outside the content hash
  sum INTEGER NOT NULL,
  PRIMARY KEY(run, step, seg, idx)) STRICT, WITHOUT ROWID;

CREATE TABLE reply(                         -- what a plug-in answered, for replay and resume
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL,
  plugin TEXT NOT NULL, call INTEGER NOT NULL,
  request BLOB NOT NULL CHECK(length(request) = 16), -- hash of what it was asked
  data BLOB NOT NULL, sum INTEGER NOT NULL,
  UNIQUE(run, step, seg, plugin, call)) STRICT;

-- ---- beside steps ------------------------------------------------------------------------------

CREATE TABLE evaluation(
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL, dataset TEXT NOT NULL,
  series INTEGER NOT NULL REFERENCES series, entry INTEGER NOT NULL,
  value_bits INTEGER NOT NULL, value REAL, sum INTEGER NOT NULL,
  PRIMARY KEY(run, step, seg, dataset, series)) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoint(                    -- intent before the file has its name, complete after
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL, entry INTEGER NOT NULL,
  state TEXT NOT NULL CHECK(state IN ('intent', 'complete')),
  path TEXT NOT NULL, bytes INTEGER NOT NULL,
  hash BLOB NOT NULL CHECK(length(hash) = 16),
  chain BLOB NOT NULL CHECK(length(chain) = 16), -- of the step it contains, as the file has it
  sum INTEGER NOT NULL,
  PRIMARY KEY(run, step, seg, entry)) STRICT, WITHOUT ROWID;

CREATE TABLE seal(                          -- pins everything before it
  run INTEGER NOT NULL, entry INTEGER NOT NULL, -- covers the entries below this one
  content BLOB NOT NULL CHECK(length(content) = 16),
  integrity BLOB NOT NULL CHECK(length(integrity) = 16), -- the chain of the entry before
  sha256 BLOB NOT NULL CHECK(length(sha256) = 32),
  sum INTEGER NOT NULL,
  PRIMARY KEY(run, entry)) STRICT, WITHOUT ROWID;

-- ---- volatile: never part of the content hash --------------------------------------------------

CREATE TABLE timing(
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL, phase TEXT NOT NULL,
  start_ns INTEGER NOT NULL, duration_ns INTEGER NOT NULL, sum INTEGER NOT NULL,
  PRIMARY KEY(run, step, seg, phase)) STRICT, WITHOUT ROWID;

CREATE TABLE gauge(                         -- perf/*: speeds, memory
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL,
  series INTEGER NOT NULL REFERENCES series,
  value_bits INTEGER NOT NULL, value REAL, sum INTEGER NOT NULL,
  PRIMARY KEY(run, step, seg, series)) STRICT, WITHOUT ROWID;

CREATE TABLE event(
  run INTEGER NOT NULL, entry INTEGER NOT NULL, i INTEGER NOT NULL, -- from 0 in its entry
  seg INTEGER NOT NULL, step INTEGER,       -- NULL: at no step
  level TEXT NOT NULL,                      -- debug info warning error
  kind TEXT NOT NULL, message TEXT NOT NULL, data TEXT, -- data: JSON
  sum INTEGER NOT NULL,
  PRIMARY KEY(run, entry, i)) STRICT, WITHOUT ROWID;
CREATE INDEX event_step ON event(run, step);

-- ---- of shortened copies -----------------------------------------------------------------------

CREATE TABLE pruned(                        -- rows that a copy left out: entry = rows here + these
  run INTEGER NOT NULL, entry INTEGER NOT NULL, rows INTEGER NOT NULL, total INTEGER NOT NULL,
  PRIMARY KEY(run, entry)) STRICT, WITHOUT ROWID;

-- ---- views: digests as lower-case hexadecimal text ---------------------------------------------

CREATE VIEW timeline AS                     -- the run as it counts: per step the newest segment
  SELECT s.run, s.step, s.seg, s.entry, s.weights, lower(hex(s.batch)) AS batch,
         lower(hex(s.rng)) AS rng, lower(hex(s.root)) AS root, lower(hex(s.chain)) AS chain,
         lower(hex(s.content)) AS content
  FROM step s
  WHERE s.seg = (SELECT max(t.seg) FROM step t WHERE t.run = s.run AND t.step = s.step);

CREATE VIEW metrics AS                      -- metrics of the timeline
  SELECT s.run, s.step, s.seg, n.name, m.value, m.value_bits AS bits
  FROM step s JOIN metric m USING(run, step, seg) JOIN series n USING(series)
  WHERE s.seg = (SELECT max(t.seg) FROM step t WHERE t.run = s.run AND t.step = s.step);

CREATE VIEW samples AS                      -- samples of the timeline
  SELECT x.* FROM sample x
  WHERE x.seg = (SELECT max(t.seg) FROM step t WHERE t.run = x.run AND t.step = x.step);

CREATE VIEW digests AS                      -- one row a point, of every segment and rank
  SELECT d.run, d.step, d.seg, d.rank, d.manifest, p.ord, p.name, p.phase, p.layer, p.op, p.kind,
         p.level, p.replicated, p.inputs, lower(hex(substr(d.data, 1 + 16 * p.ord, 16))) AS hash
  FROM digest d JOIN point p USING(manifest);

-- ---- rows are only ever added ------------------------------------------------------------------
-- X_add: OR REPLACE would remove the old row without asking the trigger on DELETE. rowid: of tables
-- that have one, which can be replaced by it, too; where none is given it is -1.

CREATE TRIGGER entry_change BEFORE UPDATE ON entry
  BEGIN SELECT RAISE(ABORT, 'ledger: entry is append-only'); END;
CREATE TRIGGER entry_remove BEFORE DELETE ON entry
  BEGIN SELECT RAISE(ABORT, 'ledger: entry is append-only'); END;
CREATE TRIGGER entry_add BEFORE INSERT ON entry
  WHEN EXISTS(SELECT 1 FROM entry WHERE run = NEW.run AND n = NEW.n)
  BEGIN SELECT RAISE(ABORT, 'ledger: entry has that row already'); END;
CREATE TRIGGER run_change BEFORE UPDATE ON run
  BEGIN SELECT RAISE(ABORT, 'ledger: run is append-only'); END;
CREATE TRIGGER run_remove BEFORE DELETE ON run
  BEGIN SELECT RAISE(ABORT, 'ledger: run is append-only'); END;
CREATE TRIGGER run_add BEFORE INSERT ON run
  WHEN EXISTS(SELECT 1 FROM run WHERE run = NEW.run OR uuid = NEW.uuid)
  BEGIN SELECT RAISE(ABORT, 'ledger: run has that row already'); END;
CREATE TRIGGER identity_change BEFORE UPDATE ON identity
  BEGIN SELECT RAISE(ABORT, 'ledger: identity is append-only'); END;
CREATE TRIGGER identity_remove BEFORE DELETE ON identity
  BEGIN SELECT RAISE(ABORT, 'ledger: identity is append-only'); END;
CREATE TRIGGER identity_add BEFORE INSERT ON identity
  WHEN EXISTS(SELECT 1 FROM identity WHERE run = NEW.run AND key = NEW.key)
  BEGIN SELECT RAISE(ABORT, 'ledger: identity has that row already'); END;
CREATE TRIGGER segment_change BEFORE UPDATE ON segment
  BEGIN SELECT RAISE(ABORT, 'ledger: segment is append-only'); END;
CREATE TRIGGER segment_remove BEFORE DELETE ON segment
  BEGIN SELECT RAISE(ABORT, 'ledger: segment is append-only'); END;
CREATE TRIGGER segment_add BEFORE INSERT ON segment
  WHEN EXISTS(SELECT 1 FROM segment WHERE run = NEW.run AND seg = NEW.seg)
  BEGIN SELECT RAISE(ABORT, 'ledger: segment has that row already'); END;
CREATE TRIGGER finish_change BEFORE UPDATE ON finish
  BEGIN SELECT RAISE(ABORT, 'ledger: finish is append-only'); END;
CREATE TRIGGER finish_remove BEFORE DELETE ON finish
  BEGIN SELECT RAISE(ABORT, 'ledger: finish is append-only'); END;
CREATE TRIGGER finish_add BEFORE INSERT ON finish
  WHEN EXISTS(SELECT 1 FROM finish WHERE run = NEW.run AND seg = NEW.seg)
  BEGIN SELECT RAISE(ABORT, 'ledger: finish has that row already'); END;
CREATE TRIGGER fact_change BEFORE UPDATE ON fact
  BEGIN SELECT RAISE(ABORT, 'ledger: fact is append-only'); END;
CREATE TRIGGER fact_remove BEFORE DELETE ON fact
  BEGIN SELECT RAISE(ABORT, 'ledger: fact is append-only'); END;
CREATE TRIGGER fact_add BEFORE INSERT ON fact
  WHEN EXISTS(SELECT 1 FROM fact WHERE run = NEW.run AND seg = NEW.seg AND scope = NEW.scope AND
    key = NEW.key)
  BEGIN SELECT RAISE(ABORT, 'ledger: fact has that row already'); END;
CREATE TRIGGER object_change BEFORE UPDATE ON object
  BEGIN SELECT RAISE(ABORT, 'ledger: object is append-only'); END;
CREATE TRIGGER object_remove BEFORE DELETE ON object
  BEGIN SELECT RAISE(ABORT, 'ledger: object is append-only'); END;
CREATE TRIGGER object_add BEFORE INSERT ON object
  WHEN EXISTS(SELECT 1 FROM object WHERE run = NEW.run AND hash = NEW.hash)
    OR EXISTS(SELECT 1 FROM object WHERE rowid = NEW.rowid)
  BEGIN SELECT RAISE(ABORT, 'ledger: object has that row already'); END;
CREATE TRIGGER step_change BEFORE UPDATE ON step
  BEGIN SELECT RAISE(ABORT, 'ledger: step is append-only'); END;
CREATE TRIGGER step_remove BEFORE DELETE ON step
  BEGIN SELECT RAISE(ABORT, 'ledger: step is append-only'); END;
CREATE TRIGGER step_add BEFORE INSERT ON step
  WHEN EXISTS(SELECT 1 FROM step WHERE run = NEW.run AND step = NEW.step AND seg = NEW.seg)
  BEGIN SELECT RAISE(ABORT, 'ledger: step has that row already'); END;
CREATE TRIGGER series_change BEFORE UPDATE ON series
  BEGIN SELECT RAISE(ABORT, 'ledger: series is append-only'); END;
CREATE TRIGGER series_remove BEFORE DELETE ON series
  BEGIN SELECT RAISE(ABORT, 'ledger: series is append-only'); END;
CREATE TRIGGER series_add BEFORE INSERT ON series
  WHEN EXISTS(SELECT 1 FROM series WHERE series = NEW.series OR name = NEW.name)
  BEGIN SELECT RAISE(ABORT, 'ledger: series has that row already'); END;
CREATE TRIGGER metric_change BEFORE UPDATE ON metric
  BEGIN SELECT RAISE(ABORT, 'ledger: metric is append-only'); END;
CREATE TRIGGER metric_remove BEFORE DELETE ON metric
  BEGIN SELECT RAISE(ABORT, 'ledger: metric is append-only'); END;
CREATE TRIGGER metric_add BEFORE INSERT ON metric
  WHEN EXISTS(SELECT 1 FROM metric WHERE run = NEW.run AND step = NEW.step AND seg = NEW.seg AND
    series = NEW.series)
  BEGIN SELECT RAISE(ABORT, 'ledger: metric has that row already'); END;
CREATE TRIGGER manifest_change BEFORE UPDATE ON manifest
  BEGIN SELECT RAISE(ABORT, 'ledger: manifest is append-only'); END;
CREATE TRIGGER manifest_remove BEFORE DELETE ON manifest
  BEGIN SELECT RAISE(ABORT, 'ledger: manifest is append-only'); END;
CREATE TRIGGER manifest_add BEFORE INSERT ON manifest
  WHEN EXISTS(SELECT 1 FROM manifest WHERE manifest = NEW.manifest OR hash = NEW.hash)
  BEGIN SELECT RAISE(ABORT, 'ledger: manifest has that row already'); END;
CREATE TRIGGER point_change BEFORE UPDATE ON point
  BEGIN SELECT RAISE(ABORT, 'ledger: point is append-only'); END;
CREATE TRIGGER point_remove BEFORE DELETE ON point
  BEGIN SELECT RAISE(ABORT, 'ledger: point is append-only'); END;
CREATE TRIGGER point_add BEFORE INSERT ON point
  WHEN EXISTS(SELECT 1 FROM point WHERE manifest = NEW.manifest AND ord = NEW.ord)
    OR EXISTS(SELECT 1 FROM point WHERE manifest = NEW.manifest AND name = NEW.name)
  BEGIN SELECT RAISE(ABORT, 'ledger: point has that row already'); END;
CREATE TRIGGER digest_change BEFORE UPDATE ON digest
  BEGIN SELECT RAISE(ABORT, 'ledger: digest is append-only'); END;
CREATE TRIGGER digest_remove BEFORE DELETE ON digest
  BEGIN SELECT RAISE(ABORT, 'ledger: digest is append-only'); END;
CREATE TRIGGER digest_add BEFORE INSERT ON digest
  WHEN EXISTS(SELECT 1 FROM digest WHERE run = NEW.run AND step = NEW.step AND seg = NEW.seg AND
    rank = NEW.rank)
    OR EXISTS(SELECT 1 FROM digest WHERE rowid = NEW.rowid)
  BEGIN SELECT RAISE(ABORT, 'ledger: digest has that row already'); END;
CREATE TRIGGER stat_change BEFORE UPDATE ON stat
  BEGIN SELECT RAISE(ABORT, 'ledger: stat is append-only'); END;
CREATE TRIGGER stat_remove BEFORE DELETE ON stat
  BEGIN SELECT RAISE(ABORT, 'ledger: stat is append-only'); END;
CREATE TRIGGER stat_add BEFORE INSERT ON stat
  WHEN EXISTS(SELECT 1 FROM stat WHERE run = NEW.run AND step = NEW.step AND seg = NEW.seg AND
    rank = NEW.rank AND ord = NEW.ord)
  BEGIN SELECT RAISE(ABORT, 'ledger: stat has that row already'); END;
CREATE TRIGGER sample_change BEFORE UPDATE ON sample
  BEGIN SELECT RAISE(ABORT, 'ledger: sample is append-only'); END;
CREATE TRIGGER sample_remove BEFORE DELETE ON sample
  BEGIN SELECT RAISE(ABORT, 'ledger: sample is append-only'); END;
CREATE TRIGGER sample_add BEFORE INSERT ON sample
  WHEN EXISTS(SELECT 1 FROM sample WHERE run = NEW.run AND step = NEW.step AND seg = NEW.seg AND
    idx = NEW.idx)
  BEGIN SELECT RAISE(ABORT, 'ledger: sample has that row already'); END;
CREATE TRIGGER reply_change BEFORE UPDATE ON reply
  BEGIN SELECT RAISE(ABORT, 'ledger: reply is append-only'); END;
CREATE TRIGGER reply_remove BEFORE DELETE ON reply
  BEGIN SELECT RAISE(ABORT, 'ledger: reply is append-only'); END;
CREATE TRIGGER reply_add BEFORE INSERT ON reply
  WHEN EXISTS(SELECT 1 FROM reply WHERE run = NEW.run AND step = NEW.step AND seg = NEW.seg AND
    plugin = NEW.plugin AND call = NEW.call)
    OR EXISTS(SELECT 1 FROM reply WHERE rowid = NEW.rowid)
  BEGIN SELECT RAISE(ABORT, 'ledger: reply has that row already'); END;
CREATE TRIGGER evaluation_change BEFORE UPDATE ON evaluation
  BEGIN SELECT RAISE(ABORT, 'ledger: evaluation is append-only'); END;
CREATE TRIGGER evaluation_remove BEFORE DELETE ON evaluation
  BEGIN SELECT RAISE(ABORT, 'ledger: evaluation is append-only'); END;
CREATE TRIGGER evaluation_add BEFORE INSERT ON evaluation
  WHEN EXISTS(SELECT 1 FROM evaluation WHERE run = NEW.run AND step = NEW.step AND seg = NEW.seg
    AND dataset = NEW.dataset AND series = NEW.series)
  BEGIN SELECT RAISE(ABORT, 'ledger: evaluation has that row already'); END;
CREATE TRIGGER checkpoint_change BEFORE UPDATE ON checkpoint
  BEGIN SELECT RAISE(ABORT, 'ledger: checkpoint is append-only'); END;
CREATE TRIGGER checkpoint_remove BEFORE DELETE ON checkpoint
  BEGIN SELECT RAISE(ABORT, 'ledger: checkpoint is append-only'); END;
CREATE TRIGGER checkpoint_add BEFORE INSERT ON checkpoint
  WHEN EXISTS(SELECT 1 FROM checkpoint WHERE run = NEW.run AND step = NEW.step AND seg = NEW.seg
    AND entry = NEW.entry)
  BEGIN SELECT RAISE(ABORT, 'ledger: checkpoint has that row already'); END;
CREATE TRIGGER seal_change BEFORE UPDATE ON seal
  BEGIN SELECT RAISE(ABORT, 'ledger: seal is append-only'); END;
CREATE TRIGGER seal_remove BEFORE DELETE ON seal
  BEGIN SELECT RAISE(ABORT, 'ledger: seal is append-only'); END;
CREATE TRIGGER seal_add BEFORE INSERT ON seal
  WHEN EXISTS(SELECT 1 FROM seal WHERE run = NEW.run AND entry = NEW.entry)
  BEGIN SELECT RAISE(ABORT, 'ledger: seal has that row already'); END;
CREATE TRIGGER timing_change BEFORE UPDATE ON timing
  BEGIN SELECT RAISE(ABORT, 'ledger: timing is append-only'); END;
CREATE TRIGGER timing_remove BEFORE DELETE ON timing
  BEGIN SELECT RAISE(ABORT, 'ledger: timing is append-only'); END;
CREATE TRIGGER timing_add BEFORE INSERT ON timing
  WHEN EXISTS(SELECT 1 FROM timing WHERE run = NEW.run AND step = NEW.step AND seg = NEW.seg AND
    phase = NEW.phase)
  BEGIN SELECT RAISE(ABORT, 'ledger: timing has that row already'); END;
CREATE TRIGGER gauge_change BEFORE UPDATE ON gauge
  BEGIN SELECT RAISE(ABORT, 'ledger: gauge is append-only'); END;
CREATE TRIGGER gauge_remove BEFORE DELETE ON gauge
  BEGIN SELECT RAISE(ABORT, 'ledger: gauge is append-only'); END;
CREATE TRIGGER gauge_add BEFORE INSERT ON gauge
  WHEN EXISTS(SELECT 1 FROM gauge WHERE run = NEW.run AND step = NEW.step AND seg = NEW.seg AND
    series = NEW.series)
  BEGIN SELECT RAISE(ABORT, 'ledger: gauge has that row already'); END;
CREATE TRIGGER event_change BEFORE UPDATE ON event
  BEGIN SELECT RAISE(ABORT, 'ledger: event is append-only'); END;
CREATE TRIGGER event_remove BEFORE DELETE ON event
  BEGIN SELECT RAISE(ABORT, 'ledger: event is append-only'); END;
CREATE TRIGGER event_add BEFORE INSERT ON event
  WHEN EXISTS(SELECT 1 FROM event WHERE run = NEW.run AND entry = NEW.entry AND i = NEW.i)
  BEGIN SELECT RAISE(ABORT, 'ledger: event has that row already'); END;
CREATE TRIGGER pruned_change BEFORE UPDATE ON pruned
  BEGIN SELECT RAISE(ABORT, 'ledger: pruned is append-only'); END;
CREATE TRIGGER pruned_remove BEFORE DELETE ON pruned
  BEGIN SELECT RAISE(ABORT, 'ledger: pruned is append-only'); END;
CREATE TRIGGER pruned_add BEFORE INSERT ON pruned
  WHEN EXISTS(SELECT 1 FROM pruned WHERE run = NEW.run AND entry = NEW.entry)
  BEGIN SELECT RAISE(ABORT, 'ledger: pruned has that row already'); END;
