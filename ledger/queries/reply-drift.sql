-- reply-drift: Did a plug-in answer the same request differently in two runs?
-- params: :a run, :b run
-- needs: SELECT count(*) FROM reply WHERE run = :a
-- or: a run has no reply of a plug-in: none was asked, or a shortened copy left them out
-- needs: SELECT count(*) FROM reply WHERE run = :b
-- or: a run has no reply of a plug-in: none was asked, or a shortened copy left them out
-- SPDX-License-Identifier: Apache-2.0
SELECT x.step, x.plugin, x.call, length(x.data) AS bytes_a, length(y.data) AS bytes_b,
       lower(hex(x.request)) AS request
FROM timeline s JOIN reply x ON x.run = :a AND x.step = s.step AND x.seg = s.seg
JOIN timeline t ON t.run = :b AND t.step = s.step
JOIN reply y ON y.run = :b AND y.step = t.step AND y.seg = t.seg AND y.plugin = x.plugin
            AND y.call = x.call
WHERE s.run = :a AND x.request = y.request AND x.data <> y.data
ORDER BY x.step, x.plugin, x.call;
