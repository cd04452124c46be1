"""Rolling a compacted partition back to an earlier round, and which rounds can still be reached."""

from siltstone.errors import ConflictError, InvalidInputError
from siltstone.model.rounds import RoundCompletion
from siltstone.objects import open_objects
from siltstone.table.completion import (
    Destination,
    commit_round,
    current_entry,
    find_problems,
    get_round,
    list_rounds,
    write_completion,
)
from siltstone.table.followers import follow, own_partition, round_source, trimmed_position


def roll_back(destination: Destination, round_id: int, *, dry_run: bool = False) -> RoundCompletion:
    """Make the state after an earlier round current again, by a new round that says so; deltas since are read anew.

    The current round is not read, so that this also cures a damaged one. A dry run returns what would be current.
    A round after which deltas are trimmed is refused: it could never be compacted further.
    Raises: NotFoundError, InvalidInputError, ConflictError, CorruptionError.
    """
    began = destination.log.read(lambda state: state.batch_id)
    target = get_round(destination, round_id)
    current = current_entry(destination)
    assert current is not None
    current_id = int(current["round_id"])
    if current_id == round_id:
        raise InvalidInputError(f"{destination.locator}: round {round_id} is the current one; choose an earlier one")
    refuse_trimmed(destination, target)
    problems = find_problems(destination, target.buckets)
    if problems:
        bad, problem = problems[0]
        raise InvalidInputError(
            f"{destination.locator}: {bad.uri} of round {round_id} is gone or damaged ({problem}); choose a later round"
        )
    completion = RoundCompletion.from_serializable(
        {
            **target.to_serializable(),
            "round_id": current_id + 1,
            "previous_round_id": current_id,
            "rolled_back_to": round_id,
            "completed_at": open_objects(destination.root).now_ms(),
        }
    )
    if dry_run:
        return completion
    source = round_source(target, own_partition(destination.locator), root=destination.root)
    if source is not None and follow(destination, source, target.high_watermark):
        # Until this was recorded, a trim may have gone by the watermark of the current round.
        refuse_trimmed(destination, target)
    written = write_completion(destination, completion, began)
    try:
        # A vacuum may forget the target, and remove its files, while it is being read.
        commit_round(destination, completion, written, current_id, needs=[round_id])
    except ConflictError:
        open_objects(destination.root).delete([written.uri])
        raise
    return completion


def refuse_trimmed(destination: Destination, target: RoundCompletion) -> None:
    """Refuse a round after which deltas are trimmed, naming the oldest one that can be reached."""
    reachable = reachable_rounds(destination)
    if target.round_id in reachable:
        return
    others = (
        f"the oldest round that can be reached is {reachable[0]}" if reachable else "no round that is kept has them"
    )
    raise InvalidInputError(
        f"{destination.locator}: round {target.round_id} is compacted up to position {target.high_watermark}, and deltas "
        f"after it are trimmed, so that it could not be compacted further; {others}"
    )


def reachable_rounds(destination: Destination) -> list[int]:
    """Return the rounds, oldest first, after which all deltas of their source are still there."""
    root, own = destination.root, own_partition(destination.locator)
    trimmed: dict[str, int] = {}
    reachable = []
    for entry in list_rounds(destination):
        folder = str(entry["source_folder"])
        if folder not in trimmed:
            source = round_source(entry, own, root=root)
            trimmed[folder] = 0 if source is None else trimmed_position(source, root=root)
        if trimmed[folder] <= int(entry["high_watermark"]):
            reachable.append(int(entry["round_id"]))
    return reachable
