//! The peers of a rail: whether and where a process is reached, and why not.

use crate::abi;
use crate::modex;
use crate::opal::{self, Proc, WHY, say, verbose};
use crate::pairing::{Partner, Them, pair};
use crate::rail::{About, Rail, open_rails};
use btl_core::ProcName;
use std::ptr;

/// The endpoint for one process, or NULL. Calls Open MPI: no lock may be held.
pub(crate) fn add(rail: &Rail, about: &About, proc_: Proc) -> *mut abi::BtlEndpoint {
    let name = proc_.name();
    if Proc::local().is_some_and(|me| me.is(proc_)) {
        // Who uses atomics on memory of several processes uses the device's on its own memory too.
        let own =
            rail.offers_atomics().then(|| rail.with(|inner| inner.endpoints.own(name, proc_)));
        return own.flatten().unwrap_or(ptr::null_mut());
    }
    let published = read(proc_);
    let added = way(about, proc_, &published).and_then(|partner| {
        rail.with(|inner| {
            let peer = inner.engine.add_peer(name, &partner.addrs).map_err(|e| e.to_string())?;
            inner.engine.set_peer_lanes(peer, &partner.lanes);
            Ok(inner.endpoints.add(peer, name, proc_))
        })
        .unwrap_or_else(|| Err("the rail is closed".to_owned()))
    });
    match added {
        Ok(endpoint) => endpoint,
        Err(why) => {
            verbose!(WHY, "{name} cannot be reached over {}: {why}", about.name);
            tell_if_lost(about, proc_, &published);
            ptr::null_mut()
        }
    }
}

/// What a process published.
type Published = Result<Vec<modex::Rail>, String>;

fn read(proc_: Proc) -> Published {
    let blob = opal::modex_get(proc_).ok_or(
        "it published nothing: no device was usable there, or the component is not installed there",
    )?;
    modex::decode(&blob).map_err(|e| format!("what it published cannot be read: {e}"))
}

/// The peer's side of this rail, or why there is none.
fn way(about: &About, proc_: Proc, published: &Published) -> Result<Partner, String> {
    let on_node = proc_.on_node();
    if let (true, Some(reason)) = (on_node, &about.no_loopback) {
        return Err(format!(
            "it runs on this node, and {0} lacks the flag LOOPBACK: it cannot connect to its own address ({reason}). \
             If it can, say so with --mca btl_verbs_loopback {0}=yes; else add the shared-memory BTL (--mca btl \
             self,vader,verbs)",
            about.device
        ));
    }
    let rails = published.as_ref().map_err(Clone::clone)?;
    let lower = proc_.name() < about.host.me;
    pair(&about.host, about.index, &Them { rails, on_node, lower }).map_err(|why| why.to_string())
}

/// Tells, once for each peer, that no rail reaches it: if the user named this component, the job will probably fail. A
/// peer on this node is the shared-memory BTL's, where that is wanted.
fn tell_if_lost(about: &About, proc_: Proc, published: &Published) {
    let rails = open_rails();
    let shared = proc_.on_node() && opal::wants_shared_memory();
    if about.index + 1 != about.host.rails.len() || shared || !opal::asked_for_by_name() {
        return;
    }
    let mut reasons: Vec<String> = Vec::new();
    for rail in rails {
        let Some(about) = rail.with(|inner| inner.about.clone()) else { continue };
        match way(&about, proc_, published) {
            Ok(_) => return,
            Err(why) => reasons.push(format!("over {}: {why}", about.name)),
        }
    }
    tell(proc_.name(), &reasons);
}

fn tell(name: ProcName, reasons: &[String]) {
    // Said already, one by one.
    if !opal::is_verbose(WHY) {
        say(format_args!("{name} cannot be reached {}", reasons.join("; ")));
    }
}
