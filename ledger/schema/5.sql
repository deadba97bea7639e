-- 5.sql - version 5 adds how long the ops of a rank took, in steps that were profiled; and samples
-- that are kept with their text, for people to read.
-- SPDX-License-Identifier: Apache-2.0

-- ---- never part of the content hash --------------------------------------------------------------

CREATE TABLE op_time(                       -- a step outside of a profile's window has none
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  phase TEXT NOT NULL, op TEXT NOT NULL,    -- ops by their names, copies as put, get, copy, zero, wait
  calls INTEGER NOT NULL,
  duration_ns INTEGER NOT NULL,             -- of all calls, by the clock of the device
  longest_ns INTEGER NOT NULL,              -- of one
  sum INTEGER NOT NULL,
  PRIMARY KEY(run, step, seg, rank, phase, op)) STRICT, WITHOUT ROWID;

CREATE VIEW op_times AS                     -- of the steps of the timeline
  SELECT o.run, o.step, o.seg, o.rank, o.phase, o.op, o.calls, o.duration_ns, o.longest_ns
  FROM op_time o
  WHERE o.seg = (SELECT max(t.seg) FROM step t WHERE t.run = o.run AND t.step = o.step);

CREATE TRIGGER op_time_change BEFORE UPDATE ON op_time
  BEGIN SELECT RAISE(ABORT, 'ledger: op_time is append-only'); END;
CREATE TRIGGER op_time_remove BEFORE DELETE ON op_time
  BEGIN SELECT RAISE(ABORT, 'ledger: op_time is append-only'); END;
CREATE TRIGGER op_time_add BEFORE INSERT ON op_time
  WHEN EXISTS(SELECT 1 FROM op_time WHERE run = NEW.run AND step = NEW.step AND
    seg = NEW.seg AND rank = NEW.rank AND phase = NEW.phase AND op = NEW.op)
  BEGIN SELECT RAISE(ABORT, 'ledger: op_time has that row already'); END;

CREATE TABLE kept_sample(                   -- some of the step's samples; none with keep-samples = 0
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL,
  idx INTEGER NOT NULL,                     -- of the sample in the batch
  data BLOB NOT NULL,                       -- JSON in gzip: docs/formats.md
  sum INTEGER NOT NULL,
  UNIQUE(run, step, seg, idx)) STRICT;

CREATE VIEW kept_samples AS                 -- of the steps of the timeline
  SELECT k.run, k.step, k.seg, k.idx, k.data
  FROM kept_sample k
  WHERE k.seg = (SELECT max(t.seg) FROM step t WHERE t.run = k.run AND t.step = k.step);

CREATE TRIGGER kept_sample_change BEFORE UPDATE ON kept_sample
  BEGIN SELECT RAISE(ABORT, 'ledger: kept_sample is append-only'); END;
CREATE TRIGGER kept_sample_remove BEFORE DELETE ON kept_sample
  BEGIN SELECT RAISE(ABORT, 'ledger: kept_sample is append-only'); END;
CREATE TRIGGER kept_sample_add BEFORE INSERT ON kept_sample
  WHEN EXISTS(SELECT 1 FROM kept_sample WHERE run = NEW.run AND step = NEW.step AND
    seg = NEW.seg AND idx = NEW.idx)
    OR EXISTS(SELECT 1 FROM kept_sample WHERE rowid = NEW.rowid)
  BEGIN SELECT RAISE(ABORT, 'ledger: kept_sample has that row already'); END;
