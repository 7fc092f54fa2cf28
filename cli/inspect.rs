//! `packlight inspect`.

use crate::args::InspectArgs;

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<bool> {
    anyhow::bail!("{}", args.path.display())
}
