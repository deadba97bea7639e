-- 3.sql - version 3 adds the named parts of which the rewards of samples consist.
-- SPDX-License-Identifier: Apache-2.0

CREATE TABLE reward_part(                   -- most rewards are plain numbers and have none
  run INTEGER NOT NULL, step INTEGER NOT NULL, seg INTEGER NOT NULL,
  idx INTEGER NOT NULL,                     -- of the sample in the batch
  series INTEGER NOT NULL REFERENCES series, -- the part's name
  value_bits INTEGER NOT NULL, value REAL, sum INTEGER NOT NULL,
  PRIMARY KEY(run, step, seg, idx, series)) STRICT, WITHOUT ROWID;

CREATE VIEW reward_parts AS                 -- of the steps of the timeline, by name
  SELECT p.run, p.step, p.seg, p.idx, n.name, p.value, p.value_bits AS bits
  FROM reward_part p JOIN series n ON n.series = p.series
  WHERE p.seg = (SELECT max(t.seg) FROM step t WHERE t.run = p.run AND t.step = p.step);

CREATE TRIGGER reward_part_change BEFORE UPDATE ON reward_part
  BEGIN SELECT RAISE(ABORT, 'ledger: reward_part is append-only'); END;
CREATE TRIGGER reward_part_remove BEFORE DELETE ON reward_part
  BEGIN SELECT RAISE(ABORT, 'ledger: reward_part is append-only'); END;
CREATE TRIGGER reward_part_add BEFORE INSERT ON reward_part
  WHEN EXISTS(SELECT 1 FROM reward_part WHERE run = NEW.run AND step = NEW.step AND
    seg = NEW.seg AND idx = NEW.idx AND series = NEW.series)
  BEGIN SELECT RAISE(ABORT, 'ledger: reward_part has that row already'); END;
