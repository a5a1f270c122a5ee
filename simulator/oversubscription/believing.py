"""What a guard with beliefs learns of each VM: its own level in place of its owner's (§12.4b)."""

from __future__ import annotations

from domain.rules.oversubscription import posterior, usage
from simulator.oversubscription.compiled import compiled
from simulator.oversubscription.layout import Guard, State, Weeks

offset_belief = compiled(posterior.offset_belief)
believed_profile = compiled(posterior.believed_profile)
clipped_moments = compiled(usage.clipped_moments)


@compiled
def _due(hours: int) -> bool:
    """Whether a belief is worth taking in: at first every hour, then ever more rarely."""
    return hours <= 4 or hours == 6 or hours == 9 or hours == 13 or hours == 18 or (hours >= 24 and hours % 12 == 0)


@compiled
def take_in_beliefs(state: State, weeks: Weeks, guard: Guard) -> None:
    """Bring the moments that the VMs alive contribute to their machines up to what is believed of them."""
    books = state.books[0]
    for i in range(books.alive):
        row = state.alive[i]
        if not _due(state.seen[row]):
            continue
        n, c, k = weeks.subscriber[books.week, row], weeks.cores[books.week, row], state.machine[row]
        mean, variance = offset_belief(state.residual[row], state.seen[row], guard.persistence, guard.shared)
        for hour in range(24):
            mu, sd = believed_profile(
                guard.mu[n, hour], guard.sd[n, hour], mean, variance, guard.persistence, guard.shared
            )
            first, second, third = clipped_moments(mu, sd)
            new = (c * first, c * c * second, c * c * c * third)
            for power in range(3):
                state.day[k, hour, power] += new[power] - state.own[row, hour, power]
                state.own[row, hour, power] = new[power]
