"""Round-robin assignor: predictable, but moves many tasks when members join or leave."""

from tidewheel.rebalance.assignors.process_load import LoadOrder
from tidewheel.rebalance.assignors.standby_placement import place_standbys
from tidewheel.rebalance.assignors.task_assignor import Assignment, AssignmentRequest
from tidewheel.rebalance.model import TaskId


class RoundRobinAssignor:
    name = "round_robin"

    def assign(self, request: AssignmentRequest) -> Assignment:
        if not request.members:
            return Assignment(owners={})
        turns = LoadOrder({member.name: member.threads for member in request.members})
        owners: dict[TaskId, str] = {}
        for task in sorted(
            request.tasks, key=lambda task: (not request.tasks[task].stateful, task)
        ):
            owners[task] = next(iter(turns))
            turns.change(owners[task], +1)
        return Assignment(owners=owners, standbys=place_standbys(request, owners, sticky=False))
