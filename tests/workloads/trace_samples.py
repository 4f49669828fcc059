"""A small made-up file of every trace format, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
NO_PUBLIC_DATA = "the public traces are not here (../shared/data)"

GAVEL = (
    "ResNet-18 (batch size 64)\trun.py -b 64\tvision\t--steps\t1\t5000\t2\t1\t-1.000000\t0.000000\n"
    "LM (batch size 10)\trun.py -b 10\ttext\t--steps\t1\t800\t1\t2.5\t-1.000000\t61.25\n"
)
OLDER_GAVEL = (
    "LM (batch size 5)\tcd text && run.py -b 5\t--steps\t1\t300\t7.000000\t4\n"
    "LM (batch size 10)\tcd text && run.py -b 10\t--steps\t0\t40\t9.000000\t1\n"
)
SHOCKWAVE = (
    "LM (batch size 10)\trun.py\ttext\t--steps\t1\t800\t1\tgns\t1\t-1.000000\t120\t5\n"
    "LM (batch size 20)\trun.py\ttext\t--steps\t1\t400\t4\tstatic\t1\t2.000000\t300\t0\n"
)
POLLUX = "name,time,application,num_replicas,batch_size\nvision-0,12,vision,4,256\nspeech-1,40,speech,1,32\n"
PHILLY = (
    "timestamp,duration,num_gpus,gpu_time,cluster\n"
    "2017-10-09 07:00:30,60.0,1,60.0,east\n"
    "2017-10-09 07:00:00,90.5,8,724.0,west\n"
    "\n"
)
TIRESIAS = (
    "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\r\n0,1,0,600,vgg,160,30\r\n7,8,30,100,resnet,140,23\r\n"
)
SWF = (
    "; Version: 2.2\n"
    "; UnixStartTime: 1000000000\n"
    "    1   10   5  100   4 -1 -1   4  200 -1 1  3  2 -1 1 -1 -1 -1\n"
    "    2   20  -1   50  -1 -1 -1  16  200 -1 1 -1 -1 -1 1 -1 -1 -1\n"
)
HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "11,ua,vc1,2,16,1,COMPLETED,2020-06-09 18:41:30,2020-06-09 18:41:31,2020-06-09 18:43:31,120,1\n"
    "12,ub,vc1,0,4,1,COMPLETED,2020-06-09 18:41:10,2020-06-09 18:41:10,2020-06-09 18:42:10,60,0\n"
    "13,ub,vc2,8,32,1,CANCELLED,2020-06-09 18:41:00,2020-06-09 18:42:00,2020-06-09 18:42:07,7,60\n"
    "14,ua,vc2,1,4,1,CANCELLED,2020-06-09 18:50:00,2020-06-09 18:50:00,2020-06-09 18:50:00,0,0\n"
)
PAI_JOBS = (
    "whole,i1,ann,Terminated,1000.0,1600.0\n"
    "parts,i2,bob,Failed,1100.0,1190.0\n"
    "cpu,i3,bob,Terminated,1200.0,1300.0\n"
    "open,i4,ann,Running,1300.0,\n"
    "lost,i5,ann,Terminated,1300.0,1400.0\n"
)
PAI_TASKS = (
    "whole,ps,1.0,Terminated,1010.0,1600.0,400.0,10.0,,CPU\n"
    "whole,worker,3.0,Terminated,1020.0,1590.0,600.0,20.0,100.0,V100\n"
    "parts,worker,2.0,Failed,1100.0,1190.0,100.0,4.0,25.0,MISC\n"
    "cpu,worker,1.0,Terminated,1200.0,1300.0,100.0,4.0,0.0,\n"
    "open,worker,1.0,Running,1300.0,,100.0,4.0,100.0,T4\n"
)
SACCT = (
    "JobID|User|Account|Partition|Submit|Start|End|ElapsedRaw|Timelimit|ReqTRES|AllocTRES|State\n"
    "100|ann|lab|gpu|2024-03-01T09:00:10|2024-03-01T09:01:00|2024-03-01T10:01:00|3600|02:00:00"
    "|cpu=8,gres/gpu:a100=2,mem=64G|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1|COMPLETED\n"
    "100.batch|||||2024-03-01T09:01:00|2024-03-01T10:01:00|3600|||cpu=8,gres/gpu=2|COMPLETED\n"
    "101_3|bob|lab|gpu|2024-03-01T09:00:00|2024-03-01T09:00:00|2024-03-01T09:10:00|600|00:10:00"
    "|cpu=4,gres/gpu=1|cpu=4,gres/gpu:v100=1,gres/gpu=1,mem=4000M|TIMEOUT\n"
    "102|bob|lab|cpu|2024-03-01T08:00:00|2024-03-01T08:00:00|2024-03-01T08:10:00|600|UNLIMITED|cpu=4|cpu=4|COMPLETED\n"
    "103|bob|lab|gpu|2024-03-01T09:05:00|Unknown|Unknown|0|UNLIMITED|gres/gpu=4||CANCELLED by 17\n"
    "104|ann|lab|gpu|2024-03-01T09:06:00|2024-03-01T09:06:00|Unknown|60|UNLIMITED|gres/gpu=4|gres/gpu=4|RUNNING\n"
)
NATIVE = (
    "# origin: 2024-01-01T00:00:00\n"
    "name,submitted_s,steps,duration_s,kind,workers,allowed_types,deadline_s\n"
    "a,0,1e3,,LM (batch size 5),2,v100|p100,\n"
    ",60.5,,90,,,,3600\n"
)

FILES = {
    "native": ("jobs.csv", NATIVE),
    "gavel": ("small.trace", GAVEL),
    "shockwave": ("small.trace", SHOCKWAVE),
    "pollux": ("workload.csv", POLLUX),
    "philly": ("jobs.csv", PHILLY),
    "tiresias": ("jobs.csv", TIRESIAS),
    "swf": ("log.txt", SWF),
    "helios": ("cluster_log.csv", HELIOS),
    "pai": ("pai_job_table.csv", PAI_JOBS),
    "sacct": ("sacct.txt", SACCT),
}


def write(folder: Path, name: str, text: str | None = None) -> Path:
    """The file of a format, with its usual contents or others; for PAI, with the table of tasks beside it."""
    file, usual = FILES[name]
    path = folder / file
    path.write_bytes((usual if text is None else text).encode())
    if name == "pai":
        (folder / "pai_task_table.csv").write_text(PAI_TASKS)
    return path
