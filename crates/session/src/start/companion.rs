//! The work that is left for a program after its start.

use super::StartEvent;
use super::filling::{Filling, SharedReport, lock};
use super::postponed::{Debtor, Settled};
use crate::PostponedState;
use process_view::ObjectReader;
use std::sync::Mutex;
use std::thread;

/// The work that is left for a program after its start.
pub struct Companion {
    /// It has to pay for the rest of its lift.
    pub debtor: Option<Debtor>,
    /// Its memory is lifted as it fills.
    pub filling: Option<Filling>,
}

impl Companion {
    /// True if nothing is left to do.
    pub fn is_idle(&self) -> bool {
        self.debtor.is_none() && self.filling.is_none()
    }

    /// The PID of the program, if something is left to do.
    pub fn pid(&self) -> Option<i32> {
        let report = self.filling.as_ref().map(Filling::report).or(self.debtor.as_ref().map(Debtor::report));
        report.map(|report| report.pid)
    }

    /// Reports why the work is not done.
    pub fn refuse(self, why: &str, tell: &mut (dyn FnMut(&StartEvent<'_>) + Send)) {
        if let Some(debtor) = self.debtor {
            tell(&debtor.over(PostponedState::Refused { why: why.to_owned() }, None).event());
        }
        if let Some(filling) = self.filling {
            filling.refuse(why, tell);
        }
    }

    /// Does the work, which may last as long as the program and its descendants.
    pub fn work(self, tell: &mut (dyn FnMut(&StartEvent<'_>) + Send)) {
        let Self { debtor, filling } = self;
        let report = filling.as_ref().map(Filling::report).or(debtor.as_ref().map(Debtor::report)).cloned();
        let Some(record) = report.map(SharedReport::new) else { return };
        let (is_filling, filling, tell) = (filling.is_some(), &Mutex::new(filling), Mutex::new(tell));
        thread::scope(|scope| {
            let (record, tell) = (&record, &tell);
            let watch = || {
                let filling = lock(filling).take();
                filling.into_iter().for_each(|filling| filling.watch(record, tell));
            };
            let started = is_filling.then(|| thread::Builder::new().spawn_scoped(scope, watch));
            if let Some(Err(error)) = started
                && let Some(filling) = lock(filling).take()
            {
                filling.refuse(&format!("no thread could be started ({error})"), &mut **lock(tell));
            }
            if let Some(debtor) = debtor {
                let settled = debtor.settle(&mut ObjectReader::new(), record);
                let settled = Settled { report: record.settle(settled.report), ..settled };
                (lock(tell))(&settled.event());
            }
        });
    }
}
