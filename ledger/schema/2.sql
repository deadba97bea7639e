-- 2.sql - version 2 adds what each of several ranks did: how long it computed, what it moved and
-- how long it waited for that.
-- SPDX-License-Identifier: Apache-2.0

-- ---- volatile: never part of the content hash --------------------------------------------------

CREATE TABLE work(                          -- a run on one rank has none
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL, rank INTEGER NOT NULL,
  phase TEXT NOT NULL,                      -- rollout score train save eval; other: between them
  move TEXT NOT NULL,                       -- what was moved and waited for; '': it computed
  host TEXT NOT NULL,                       -- where the rank ran
  calls INTEGER NOT NULL,                   -- moves; of computing, how often the phase began
  duration_ns INTEGER NOT NULL,             -- every nanosecond of a rank is in one row
  sent INTEGER NOT NULL, received INTEGER NOT NULL, -- bytes, to and from other ranks
  sum INTEGER NOT NULL,
  PRIMARY KEY(run, step, seg, rank, phase, move)) STRICT, WITHOUT ROWID;

CREATE VIEW ranks AS                        -- a row a rank and step of the timeline
  SELECT w.run, w.step, w.seg, w.rank, min(w.host) AS host,
         sum(CASE w.move WHEN '' THEN w.duration_ns ELSE 0 END) AS computed_ns,
         sum(CASE w.move WHEN '' THEN 0 ELSE w.duration_ns END) AS waited_ns,
         sum(w.sent) AS sent, sum(w.received) AS received
  FROM work w
  WHERE w.seg = (SELECT max(t.seg) FROM step t WHERE t.run = w.run AND t.step = w.step)
  GROUP BY w.run, w.step, w.seg, w.rank;

CREATE TRIGGER work_change BEFORE UPDATE ON work
  BEGIN SELECT RAISE(ABORT, 'ledger: work is append-only'); END;
CREATE TRIGGER work_remove BEFORE DELETE ON work
  BEGIN SELECT RAISE(ABORT, 'ledger: work is append-only'); END;
CREATE TRIGGER work_add BEFORE INSERT ON work
  WHEN EXISTS(SELECT 1 FROM work WHERE run = NEW.run AND step = NEW.step AND seg = NEW.seg AND
    rank = NEW.rank AND phase = NEW.phase AND move = NEW.move)
  BEGIN SELECT RAISE(ABORT, 'ledger: work has that row already'); END;
