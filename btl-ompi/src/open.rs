//! Opens the ports that are wanted: parameters and files, lanes, devices, publication.

use crate::devices;
use crate::driver::{self, Candidate, How, Opened};
use crate::modex;
use crate::module;
use crate::offer;
use crate::opal::{self, Proc, WHY, say, verbose};
use crate::pairing::Host;
use crate::params::{self, Limits, Params, PortName, Wanted};
use crate::queues::{self, Plan, SendSide};
use crate::rail::{self, About, Rail};
use crate::register;
use crate::signals;
use btl_core::params::{CreditRoute, DeviceParams, Settings};
use btl_core::wire::HEADER;
use btl_core::{Config, LaneConfig, ProcName};
use std::sync::Arc;

/// Why the component stays out.
pub(crate) struct Declined {
    pub(crate) why: String,
    /// Whether it is told even to users who did not ask for this component: their parameters are
    /// wrong.
    pub(crate) loud: bool,
}

impl Declined {
    fn quiet(why: impl Into<String>) -> Self {
        Self { why: why.into(), loud: false }
    }

    pub(crate) fn loud(why: impl ToString) -> Self {
        Self { why: why.to_string(), loud: true }
    }
}

/// A port that was opened, and how it is used.
struct Ready {
    name: PortName,
    opened: Opened,
    config: Config,
    limits: Limits,
}

/// What all ports are opened with.
struct Plans<'a> {
    params: &'a Params,
    files: DeviceParams,
    /// Without lanes of its own.
    base: Config,
    asked: Limits,
}

/// Opens every wanted port and publishes them.
pub(crate) fn rails() -> Result<Vec<&'static Rail>, Declined> {
    params::check_types(|name| std::env::var(name).ok()).map_err(Declined::loud)?;
    let params = register::read().check().map_err(Declined::loud)?;
    let me = Proc::local()
        .ok_or_else(|| Declined::quiet("Open MPI has no name for this process"))?
        .name();
    // The job family: processes that were spawned later belong to it, other runs do not.
    let job = me.job >> 16;
    let base = params.config(me, job);
    base.validate().map_err(Declined::loud)?;
    let files = devices::read(&params.files, me.rank == 0);
    let plans = Plans { params: &params, files, base, asked: register::limits() };

    let mut ready = Vec::new();
    let mut reasons = Vec::new();
    let mut loud = params.ports.is_only() || params.nets.is_only();
    for candidate in candidates(&params)? {
        let name = candidate.name();
        if ready.len() >= params.max_btls.min(rail::MAX_RAILS) {
            verbose!(
                WHY,
                "{name} is not used: btl_verbs_max_btls or the limit of {} is reached",
                rail::MAX_RAILS
            );
            continue;
        }
        match plans.open(candidate) {
            Ok(it) => ready.push(it),
            Err(declined) => {
                verbose!(WHY, "{name} cannot be used: {}", declined.why);
                loud |= declined.loud;
                reasons.push(format!("{name} cannot be used: {}", declined.why));
            }
        }
    }
    if ready.is_empty() {
        return Err(Declined { why: reasons.join("; "), loud });
    }
    publish_and_start(ready, &params, me)
}

/// The ports the user wants, of all that are usable; never empty.
fn candidates(params: &Params) -> Result<Vec<Candidate>, Declined> {
    let found = match &params.ports {
        Wanted::Only(names) => named(names, params.warn_nonexistent)?,
        wanted => {
            let mut found = driver::find(None).map_err(Declined::quiet)?;
            found.retain(|candidate| wanted.has(|entry| entry.covers(&candidate.name())));
            for entry in wanted.entries().iter().filter(|_| params.warn_nonexistent) {
                if !driver::exists(entry) {
                    say(format_args!("btl_verbs_if_exclude: there is no device of {entry}"));
                }
            }
            if found.is_empty() {
                return Err(Declined::quiet("btl_verbs_if_exclude leaves no device port"));
            }
            found
        }
    };
    let mut reasons = Vec::new();
    let mut wanted = Vec::new();
    for mut candidate in found {
        let name = candidate.name();
        let carrier = candidate.carrier();
        if !params.carriers.has(carrier) {
            reasons.push(format!("{name} is {carrier}, which btl_verbs_device_type leaves out"));
        } else if candidate.keep(|ip| params.nets.has(|net| net.has(ip))) == 0 {
            let which = if params.nets.is_only() { "include" } else { "exclude" };
            reasons.push(format!("btl_verbs_ipaddr_{which} leaves {name} no address"));
        } else {
            wanted.push(candidate);
        }
    }
    for reason in &reasons {
        verbose!(WHY, "{reason}");
    }
    if wanted.is_empty() {
        return Err(Declined { why: reasons.join("; "), loud: true });
    }
    Ok(wanted)
}

/// The ports of a list. A name that fits nothing is told, if others do.
fn named(names: &[PortName], warn: bool) -> Result<Vec<Candidate>, Declined> {
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut reasons = Vec::new();
    for name in names {
        match driver::find(Some(name)) {
            // A list can name a port twice.
            Ok(found) => {
                for candidate in found {
                    if !candidates.iter().any(|known| known.name() == candidate.name()) {
                        candidates.push(candidate);
                    }
                }
            }
            Err(why) => reasons.push(format!("btl_verbs_if_include: {why}")),
        }
    }
    if candidates.is_empty() {
        return Err(Declined::loud(reasons.join("; ")));
    }
    for reason in &reasons {
        if warn {
            say(format_args!("{reason}; the other ports of the list are used"));
        } else {
            verbose!(WHY, "{reason}");
        }
    }
    Ok(candidates)
}

impl Plans<'_> {
    /// Opens one port as parameters and files say.
    fn open(&self, candidate: Candidate) -> Result<Ready, Declined> {
        let name = candidate.name();
        let warn = self.params.warn_no_params;
        let said = devices::settings(&self.files, &name, candidate.part(), warn);
        if let Some(ignore) = said.ignore_device.as_ref().filter(|setting| setting.value) {
            return Err(Declined::quiet(format!("{} says ignore_device", ignore.place)));
        }
        self.tell_loopback(&candidate, &said);
        let lanes = self.lanes(&said, &name)?;
        let credit_route = self.route(&said, &name);
        let config = Config { lanes, credit_route, ..self.base.clone() };
        config.validate().map_err(Declined::loud)?;
        let (first, last) = (config.max_payload(0), config.max_payload(last_lane(&config)));
        let limits = self.asked.fit(register::default_limits(), first, last);
        let limits = limits.map_err(Declined::loud)?;
        let inline = self.params.how.max_inline;
        let of_file = said.max_inline_data.and_then(|setting| setting.value);
        let how = How {
            max_inline: inline.or(of_file),
            shared_work_queue: said.shared_work_queue.map(|setting| setting.value),
            ..self.params.how.clone()
        };
        let mut opened =
            signals::without(|| candidate.open(&config, &how)).map_err(Declined::quiet)?;
        opened.published.eager = u32::try_from(limits.matched() + HEADER).unwrap_or(u32::MAX);
        Ok(Ready { name, opened, config, limits })
    }

    /// The user's parameter goes before the device's section.
    fn tell_loopback(&self, candidate: &Candidate, said: &Settings) {
        if let Some(setting) = &said.loopback_capable {
            let place = format!("{} says loopback_capable", setting.place);
            candidate.set_loopback(setting.value, place);
        }
        let device = candidate.name().device;
        if let Some((_, works)) = self.params.loopback.iter().rfind(|(name, _)| *name == device) {
            candidate.set_loopback(*works, "btl_verbs_loopback says so".to_owned());
        }
    }

    /// The lanes: as the parameter says, else the device's section, else the engine's own.
    fn lanes(&self, said: &Settings, name: &PortName) -> Result<Vec<LaneConfig>, Declined> {
        let frame = u32::try_from(self.asked.matched() + HEADER).unwrap_or(u32::MAX);
        let plan = match (&self.params.queues, &said.receive_queues) {
            (Some(queues), _) => queues::plan(queues, frame, self.params.send)
                .map_err(|why| Declined::loud(format!("btl_verbs_receive_queues: {why}"))),
            (None, Some(setting)) => queues::parse(&setting.value)
                .and_then(|queues| queues::plan(&queues, frame, self.params.send))
                .map_err(|why| Declined::loud(format!("{}: receive_queues: {why}", setting.place))),
            (None, None) => Ok(default_plan(&self.base.lanes, frame, self.params.send)),
        }?;
        for queue in &plan.left_out {
            verbose!(
                WHY,
                "{name}: the queue with buffers of {} bytes is left out: lane 0 carries all eager messages, so its \
                 buffers hold btl_verbs_eager_limit",
                queue.size
            );
        }
        Ok(plan.lanes)
    }

    /// The lane of credits: as the parameter says, else the device's section.
    fn route(&self, said: &Settings, name: &PortName) -> CreditRoute {
        let (route, place) = match (self.params.credit_route, &said.credit_route) {
            (Some(route), _) => (route, "btl_verbs_credit_route".to_owned()),
            (None, Some(setting)) => (setting.value, setting.place.to_string()),
            (None, None) => (CreditRoute::OwnLane, "the default".to_owned()),
        };
        verbose!(opal::LIFE, "{name}: credit_route is {route} ({place})");
        route
    }
}

fn last_lane(config: &Config) -> u8 {
    u8::try_from(config.lanes.len()).unwrap_or(u8::MAX).saturating_sub(1)
}

/// The engine's own lanes, from the first whose buffers hold `frame` bytes.
fn default_plan(own: &[LaneConfig], frame: u32, send: SendSide) -> Plan {
    let last = own.len().saturating_sub(1);
    let first = own.iter().position(|lane| lane.buffer_size >= frame).unwrap_or(last);
    let with = |lane: &LaneConfig| LaneConfig {
        send_depth: if send.depth > 0 { send.depth } else { lane.send_depth },
        send_slots: if send.slots > 0 { send.slots } else { lane.send_slots },
        ..*lane
    };
    Plan { lanes: own.iter().skip(first).map(with).collect(), left_out: Vec::new() }
}

fn publish_and_start(
    ready: Vec<Ready>,
    params: &Params,
    me: ProcName,
) -> Result<Vec<&'static Rail>, Declined> {
    let published: Vec<modex::Rail> = ready.iter().map(|it| it.opened.published.clone()).collect();
    let blob = modex::encode(&published)
        .map_err(|e| Declined::loud(format!("nothing can be published: {e}")))?;
    opal::modex_put(&driver::published(blob)).map_err(|code| {
        Declined::loud(format!("Open MPI did not publish the data (code {code})"))
    })?;
    let of_ports = published.iter().flat_map(|rail| rail.addrs.iter().map(|addr| addr.at.ip()));
    let mine = driver::host_addresses().into_iter().chain(of_ports).collect();
    let host = Arc::new(Host { me, rails: published, mine, any_subnet: params.any_subnet });

    let mut rails = Vec::with_capacity(ready.len());
    for (index, Ready { name, mut opened, config, limits }) in ready.into_iter().enumerate() {
        let about = About {
            name: format!("{name} ({})", opened.published.carrier),
            port: name.port.unwrap_or(1),
            device: name.device,
            index,
            host: Arc::clone(&host),
            no_loopback: opened.no_loopback.take(),
            report: params.report,
            t_close: params.t_close,
        };
        let (rail, domain) = Rail::open(&config, opened, about.clone()).map_err(Declined::loud)?;
        // SAFETY: Open MPI does not know the module yet.
        unsafe {
            register::apply(rail.module(), limits);
            module::fill(rail.module());
            offer::apply(rail, domain, &about.name);
        }
        module::opened(&about, limits);
        rails.push(rail);
    }
    Ok(rails)
}
