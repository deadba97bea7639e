-- 4.sql - version 4 adds the samples that a plug-in led: how many turns they had.
-- SPDX-License-Identifier: Apache-2.0

-- ---- never part of the content hash: it follows from the replies, which are ---------------------

CREATE TABLE led_sample(                    -- a run without turns has none
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL,
  idx INTEGER NOT NULL,                     -- of the sample in the batch
  turns INTEGER NOT NULL,                   -- of the model
  inserted INTEGER NOT NULL,                -- tokens of the response that the plug-in gave
  sum INTEGER NOT NULL,
  PRIMARY KEY(run, step, seg, idx)) STRICT, WITHOUT ROWID;

CREATE VIEW led_samples AS                  -- of the steps of the timeline
  SELECT l.run, l.step, l.seg, l.idx, l.turns, l.inserted
  FROM led_sample l
  WHERE l.seg = (SELECT max(t.seg) FROM step t WHERE t.run = l.run AND t.step = l.step);

CREATE TRIGGER led_sample_change BEFORE UPDATE ON led_sample
  BEGIN SELECT RAISE(ABORT, 'ledger: led_sample is append-only'); END;
CREATE TRIGGER led_sample_remove BEFORE DELETE ON led_sample
  BEGIN SELECT RAISE(ABORT, 'ledger: led_sample is append-only'); END;
CREATE TRIGGER led_sample_add BEFORE INSERT ON led_sample
  WHEN EXISTS(SELECT 1 FROM led_sample WHERE run = NEW.run AND step = NEW.step AND
    seg = NEW.seg AND idx = NEW.idx)
  BEGIN SELECT RAISE(ABORT, 'ledger: led_sample has that row already'); END;
