//! Steps of the message path.

use super::fabric::Fabric;
use super::model::Side;
use super::ops::Step;
use super::world::{Seat, World, address, pick, remote_address};
use rdma_safe::*;

/// The flags that a number stands for. Bits without a name are in it too: they must not reach the device.
fn flags(n: u8) -> SendFlags {
    SendFlags::from_bits_retain(u32::from(n))
}

impl<F: Fabric> World<F> {
    pub(super) fn posting(&mut self, step: Step) {
        match step {
            Step::PostRecv { qp, slot } => self.post_recv(qp, slot),
            Step::PostSend { qp, slot, len, flags: f } => self.post_send(qp, slot, len, flags(f)),
            Step::PostInline { qp, len, flags: f } => self.post_inline(qp, len, flags(f)),
            Step::PostEmptyWrite(qp) => {
                self.with_qp(qp, |qp, _| qp.post_empty_write().is_ok());
            }
            Step::PostOther { qp, what, slot, flags: f } => {
                self.post_other(qp, what, slot, flags(f));
            }
            Step::Redeem { wc, qp } => self.redeem(wc, qp),
            Step::RedeemAll => self.redeem_all(),
            Step::PollGroup { group, times } => self.poll_group(group, times),
            Step::Reclaim(n) => self.reclaim(n),
            other => panic!("{other:?} is done elsewhere"),
        }
    }

    fn post_recv(&mut self, qp: u8, slot: u8) {
        let Some(i) = pick(slot, self.pool.len()) else { return };
        if self.qps.is_empty() {
            return;
        }
        let slot = self.pool.swap_remove(i);
        let a = address(&slot);
        let Some((serial, posted)) = self.with_qp(qp, |qp, _| qp.post_recv(slot)) else { return };
        self.settle_post(a, serial, Side::Recv, posted);
    }

    fn post_send(&mut self, qp: u8, slot: u8, len: u16, flags: SendFlags) {
        let Some(i) = pick(slot, self.pool.len()) else { return };
        if self.qps.is_empty() {
            return;
        }
        let mut slot = self.pool.swap_remove(i);
        let a = address(&slot);
        let len = usize::from(len);
        let within = len.min(slot.capacity());
        let number = self.messages.write(&mut slot[..within]);
        let posted = self.with_qp(qp, |qp, _| qp.post_send(slot, len, flags));
        let Some((serial, posted)) = posted else { return };
        if let Ok(()) | Err(PostError { why: Why::Device(_), .. }) = &posted {
            self.messages.sent(number, serial, len);
        }
        self.settle_post(a, serial, Side::Send, posted);
    }

    fn post_inline(&mut self, qp: u8, len: u8, flags: SendFlags) {
        let mut data = vec![0; len.into()];
        let number = self.messages.write(&mut data);
        let posted = self.with_qp(qp, |qp, _| qp.post_inline(&data, flags));
        let Some((serial, posted)) = posted else { return };
        match posted {
            Ok(()) | Err(PostError { why: Why::Device(_), .. }) => {
                self.messages.sent(number, serial, data.len());
            }
            Err(e) => assert!(e.slot.is_none()),
        }
    }

    /// The queue pair has the slot now, or it came back.
    fn settle_post(
        &mut self,
        a: usize,
        serial: u64,
        side: Side,
        posted: std::result::Result<(), PostError>,
    ) {
        match posted {
            Ok(()) => {
                self.tally.posted += 1;
                self.model.posted(a, serial, side);
            }
            Err(PostError { why: Why::Device(_), slot, .. }) => {
                assert!(slot.is_none(), "the device may have it");
                self.tally.failed_posts += 1;
                self.model.posted(a, serial, side);
            }
            Err(e) => {
                let slot = e.slot.expect("the device never saw it");
                assert_eq!(address(&slot), a);
                self.tally.refused += 1;
                self.not_the_devices(&slot);
                self.pool.push(slot);
            }
        }
    }

    fn redeem(&mut self, wc: u8, qp: u8) {
        let Some(i) = pick(wc, self.wcs.len()) else { return };
        let mut wc = self.wcs.swap_remove(i);
        let (whose, status) = (wc.serial(), wc.status());
        let Some((serial, done)) = self.with_qp(qp, |qp, _| qp.complete(&mut wc)) else {
            return self.wcs.push(wc);
        };
        match done {
            Some(done) => {
                assert_eq!(whose, serial, "redeemed by another");
                assert!(wc.is_spent());
                self.tally.redeemed += 1;
                self.done_with(serial, done);
            }
            None => {
                self.tally.not_redeemed += 1;
                assert!(
                    whose != serial || !status.is_ok() || !self.fabric.honest(),
                    "{wc:?} was refused by its own queue pair"
                );
                self.wcs.push(wc);
            }
        }
    }

    fn redeem_all(&mut self) {
        for mut wc in std::mem::take(&mut self.wcs) {
            let whose = wc.serial();
            let Some(i) = self.qps.iter().position(|q| q.serial == whose) else { continue };
            let n = u8::try_from(i).unwrap();
            if let Some((serial, Some(done))) = self.with_qp(n, |qp, _| qp.complete(&mut wc)) {
                self.tally.redeemed += 1;
                self.done_with(serial, done);
            }
        }
    }

    fn poll_group(&mut self, n: u8, times: u8) {
        let Some(g) = pick(n, self.groups.len()) else { return };
        for _ in 0..times {
            let (id, (_, group)) = self.groups.iter_mut().nth(g).unwrap();
            let id = *id;
            let Ok(Some(c)) = group.poll() else { return };
            let is_there =
                |q: &super::world::Qp| matches!(q.seat, Seat::In(i, k) if i == id && k == c.key);
            assert!(self.qps.iter().any(is_there), "a completion of a stranger: {c:?}");
            self.tally.routed += 1;
            let serial = c.key.serial();
            match c.payload {
                Some(payload) => {
                    let side = if c.op.is_recv() { Side::Recv } else { Side::Send };
                    self.back(serial, payload, Some(side));
                }
                None => self.done(serial, c.op, c.slot, c.status, c.byte_len),
            }
        }
    }

    fn done_with(&mut self, serial: u64, done: Done) {
        match done.payload {
            Some(payload) => {
                let side = if done.op.is_recv() { Side::Recv } else { Side::Send };
                self.back(serial, payload, Some(side));
            }
            None => self.done(serial, done.op, done.slot, done.status, done.byte_len),
        }
    }

    fn reclaim(&mut self, n: u8) {
        while let Some((serial, Some(payload))) = self.with_qp(n, |qp, _| qp.reclaim_payload()) {
            self.tally.reclaimed += 1;
            self.back(serial, payload, Some(Side::Send));
        }
    }

    /// Writes, reads and lists: what is posted is taken from the pools, and goes back there or to the queue pair.
    fn post_other(&mut self, qp: u8, what: u8, slot: u8, flags: SendFlags) {
        let at = pick(slot, self.remotes.len()).map(|i| self.remotes[i].remote());
        let (Some(at), false) = (at, self.qps.is_empty()) else { return };
        let mut addresses = Vec::new();
        let request = match what % 4 {
            0 | 1 => {
                let Some(i) = pick(slot, self.pool.len()) else { return };
                let slot = self.pool.swap_remove(i);
                addresses.push(address(&slot));
                let len = slot.capacity().min(64);
                match what % 4 {
                    0 => Request::write(slot, len, at),
                    _ => Request::fetch_add(slot, at, 1),
                }
            }
            2 => {
                let sink = self.remotes.swap_remove(usize::from(what / 4) % self.remotes.len());
                addresses.push(remote_address(&sink));
                Request::read(sink, 64, at)
            }
            _ => {
                let Some(i) = pick(slot, self.pool.len()) else { return };
                let mut list = SgList::new();
                let slot = self.pool.swap_remove(i);
                addresses.push(address(&slot));
                let len = slot.capacity();
                list.push(slot, len).expect("the first piece");
                Request::write_list(list, at)
            }
        };
        let posted = self.with_qp(qp, |qp, _| qp.post(request.flags(flags)));
        let Some((serial, posted)) = posted else { return };
        self.mixed.insert(serial);
        for a in addresses {
            self.model.posted(a, serial, Side::Send);
        }
        match posted {
            Ok(()) => self.tally.posted += 1,
            Err(e) if matches!(e.why, Why::Device(_)) => assert!(e.into_payload().is_none()),
            Err(e) => {
                self.tally.refused += 1;
                let payload = e.into_payload().expect("the device never saw it");
                self.back(serial, payload, Some(Side::Send));
            }
        }
    }
}
